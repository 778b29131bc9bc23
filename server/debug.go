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

// Page is a page of the debug listener.
type Page struct {
	Path    string // a pattern of http.ServeMux, such as "/rlconfig"
	Help    string // one line, shown at "/endpoints"; an empty Help keeps the page off the list
	Handler http.Handler
}

// address returns the path of p without the syntax of patterns.
func (p Page) address() string { return strings.TrimSuffix(p.Path, "{$}") }

// pprofPages answer only callers on this host, because a profile contains pieces of
// memory. A kubectl port-forward comes from this host. The cmdline page is left out,
// because arguments can contain secrets.
//
// Importing net/http/pprof also registers its pages on http.DefaultServeMux. The
// registration is harmless, because no listener of this package serves that mux.
var pprofPages = []Page{
	{"/debug/pprof/", "profiles by name, such as /debug/pprof/heap", onlyLocal(pprof.Index)},
	{"/debug/pprof/profile", "CPU profile; ?seconds=30", onlyLocal(pprof.Profile)},
	{"/debug/pprof/trace", "execution trace; ?seconds=1", onlyLocal(pprof.Trace)},
}

// debugHandler serves pages and pprof. "/endpoints" and any unknown path show the list of
// pages.
func debugHandler(pages []Page) http.Handler {
	pages = slices.Concat(pages, pprofPages)
	slices.SortFunc(pages, func(a, b Page) int { return cmp.Compare(a.address(), b.address()) })

	mux := http.NewServeMux()
	var list strings.Builder
	for _, p := range pages {
		mux.Handle(p.Path, p.Handler)
		if p.Help != "" {
			fmt.Fprintf(&list, "%s: %s\n", p.address(), p.Help)
		}
	}
	showList := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(list.String()))
	}
	mux.HandleFunc("/endpoints", showList)
	mux.HandleFunc("/", showList)
	return mux
}

// onlyLocal answers 403 to callers from other hosts.
func onlyLocal(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			httpError(w, http.StatusForbidden, "profiles are only for callers on the same host; use kubectl port-forward or ssh")
			return
		}
		h(w, r)
	})
}
