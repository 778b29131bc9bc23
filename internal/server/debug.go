package server

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Page is a page of the debug listener.
type Page struct {
	Path    string // a pattern of http.ServeMux, such as "/rlconfig"
	Help    string // one line, shown at "/endpoints"; an empty Help keeps the page off the list
	Handler http.Handler

	// Stream is set if the answer goes on until the client leaves. It also ends when the listener stops.
	Stream bool

	// AnyHost is set if requests may address any name: the page has no secrets, or checks its callers itself.
	AnyHost bool
}

func (p Page) address() string { return strings.TrimSuffix(p.Path, "{$}") }

// pprofPages answer only callers on this host, such as a kubectl port-forward, because a profile contains pieces of
// memory. The cmdline page is left out, because arguments can contain secrets.
var pprofPages = []Page{
	{Path: "/debug/pprof/", Help: "profiles by name, such as /debug/pprof/heap", Handler: onlyLocal(pprof.Index), AnyHost: true},
	{Path: "/debug/pprof/profile", Help: "CPU profile; ?seconds=30", Handler: onlyLocal(pprof.Profile), AnyHost: true},
	{Path: "/debug/pprof/trace", Help: "execution trace; ?seconds=1", Handler: onlyLocal(pprof.Trace), AnyHost: true},
}

// debugHandler serves pages, pprof, and their list at "/endpoints", and at "/" without a page of its own. Streams
// end when stopping is done. Requests may address the given names.
func debugHandler(pages []Page, names []string, stopping context.Context) http.Handler { //nolint:revive // stopping is not the context of a call
	pages = slices.Concat(pages, pprofPages)
	slices.SortFunc(pages, func(a, b Page) int { return cmp.Compare(a.address(), b.address()) })

	mux := http.NewServeMux()
	var list strings.Builder
	hasRoot := false
	for _, p := range pages {
		if p.Stream {
			p.Handler = streamUntil(stopping, p.Handler)
		}
		if !p.AnyHost {
			p.Handler = onlyOwnNames(names, isAny, p.Handler)
		}
		mux.Handle(p.Path, p.Handler)
		hasRoot = hasRoot || p.address() == "/"
		if p.Help != "" {
			fmt.Fprintf(&list, "%s: %s\n", p.address(), p.Help)
		}
	}
	showList := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(list.String()))
	}
	mux.HandleFunc("/endpoints", showList)
	if !hasRoot {
		mux.HandleFunc("/{$}", showList)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		httpError(w, http.StatusNotFound, "unknown path; /endpoints lists all pages")
	})
	return mux
}

// streamUntil returns h with requests that end when stopping is done, and have no read timeout.
func streamUntil(stopping context.Context, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(stopping, cancel)()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// IsLocal reports whether r comes from this host, and addresses localhost or an IP address. A page of another site
// addresses its own name, even if that name resolves to this host (DNS rebinding).
func IsLocal(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback() && namesNoSite(nameOf(r.Host))
}

func nameOf(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

func namesNoSite(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil || name == "localhost"
}

var privateSuffixes = []string{".localhost", ".local", ".internal", ".svc"}

// isPrivateName reports whether no site on the internet can have name. A name without a dot is the name of a
// container or of a Kubernetes service.
func isPrivateName(name string) bool {
	return namesNoSite(name) || name != "" && !strings.Contains(name, ".") ||
		slices.ContainsFunc(privateSuffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// onlyOwnNames answers 403 to requests without TLS that address the name of a site, unless names has it, because a
// page of that site could read h by DNS rebinding. isChecked chooses the requests.
func onlyOwnNames(names []string, isChecked func(*http.Request) bool, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := nameOf(r.Host)
		isOwn := func(own string) bool { return nameOf(own) == name }
		if r.TLS == nil && isChecked(r) && !isPrivateName(name) && !slices.ContainsFunc(names, isOwn) {
			httpError(w, http.StatusForbidden, fmt.Sprintf("host: got %q, want an IP address, localhost, a name of the cluster, or a name in DEBUG_NAMES", r.Host))
			return
		}
		h.ServeHTTP(w, r)
	})
}

func isAny(*http.Request) bool { return true }

// isFromBrowser reports whether a browser sent r. Browsers send Origin with each request that has a body, and
// Sec-Fetch-Site to localhost and over HTTPS. Without both, r has no body and charges no limit.
func isFromBrowser(r *http.Request) bool {
	return r.Header["Origin"] != nil || r.Header["Sec-Fetch-Site"] != nil
}

func onlyLocal(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsLocal(r) {
			httpError(w, http.StatusForbidden, "profiles are only for callers on the same host; use kubectl port-forward or ssh")
			return
		}
		h(w, r)
	})
}
