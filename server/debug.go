package server

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
)

// Page is an endpoint of the debug listener.
type Page struct {
	Path    string // as http.ServeMux takes it, such as "/rlconfig"
	Help    string // one line, shown at "/"
	Handler http.Handler
}

// pprofPages answer callers on this host only (kubectl port-forward is one): a
// profile holds pieces of memory. cmdline is left out, as arguments can hold
// secrets.
//
// Importing net/http/pprof also registers on http.DefaultServeMux. That is
// harmless as long as nobody serves that mux, and nothing here does.
var pprofPages = []Page{
	{"/debug/pprof/", "profiles by name, such as /debug/pprof/heap", onlyLocal(pprof.Index)},
	{"/debug/pprof/profile", "CPU profile; ?seconds=30", onlyLocal(pprof.Profile)},
	{"/debug/pprof/trace", "execution trace; ?seconds=1", onlyLocal(pprof.Trace)},
}

// debugHandler serves the given pages, pprof, and at every other path the list
// of them.
func debugHandler(pages []Page) http.Handler {
	pages = slices.Concat(pages, pprofPages)
	slices.SortFunc(pages, func(a, b Page) int { return cmp.Compare(a.Path, b.Path) })

	mux := http.NewServeMux()
	var list strings.Builder
	for _, p := range pages {
		mux.Handle(p.Path, p.Handler)
		fmt.Fprintf(&list, "%s: %s\n", p.Path, p.Help)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(list.String()))
	})
	return mux
}

// onlyLocal refuses callers from other hosts.
func onlyLocal(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			httpError(w, http.StatusForbidden, "profiles are for callers on the same host; kubectl port-forward or ssh gets you there")
			return
		}
		h(w, r)
	})
}
