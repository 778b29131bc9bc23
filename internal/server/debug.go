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

// Page is a page of the debug listener or of the HTTP listener.
type Page struct {
	Path    string // a pattern of http.ServeMux, such as "/rlconfig"
	Help    string // one line for the list at "/endpoints"; empty means that the list does not show the page
	Handler http.Handler

	// IsStream reports that the answer continues until the client leaves or the listener stops.
	IsStream bool

	// AllowsAnyHost allows requests that address any name. A page that sets AllowsAnyHost has no secrets, or checks its
	// callers.
	AllowsAnyHost bool
}

func (p Page) address() string { return strings.TrimSuffix(p.Path, "{$}") }

// pprofPages answer only callers on this host, such as a kubectl port-forward, because a profile contains pieces of
// memory. pprofPages have no page cmdline, because arguments can contain secrets.
var pprofPages = []Page{
	{Path: "/debug/pprof/", Help: "profiles by name, such as /debug/pprof/heap", Handler: requireLocal(pprof.Index), AllowsAnyHost: true},
	{Path: "/debug/pprof/profile", Help: "CPU profile; ?seconds=30", Handler: requireLocal(pprof.Profile), AllowsAnyHost: true},
	{Path: "/debug/pprof/trace", Help: "execution trace; ?seconds=1", Handler: requireLocal(pprof.Trace), AllowsAnyHost: true},
}

// debugHandler serves pages and pprof. "/endpoints" lists all pages. "/" shows the same list if no page has the path "/".
// Streams end when streamCtx is done. allowedNames are Options.DebugNames.
func debugHandler(pages []Page, allowedNames []string, streamCtx context.Context) http.Handler { //nolint:revive // streamCtx is not the context of a call
	pages = slices.Concat(pages, pprofPages)
	slices.SortFunc(pages, func(a, b Page) int { return cmp.Compare(a.address(), b.address()) })

	mux := http.NewServeMux()
	var list strings.Builder
	hasRoot := false
	for _, p := range pages {
		if p.IsStream {
			p.Handler = streamHandler(streamCtx, p.Handler)
		}
		if !p.AllowsAnyHost {
			p.Handler = requireOwnName(allowedNames, isAnyRequest, p.Handler)
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

func streamHandler(streamCtx context.Context, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(streamCtx, cancel)()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// IsLocal reports whether r comes from this host, and addresses localhost or an IP address. A request from a page of
// another site addresses the name of that site, even if the name resolves to this host (DNS rebinding).
func IsLocal(r *http.Request) bool {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && client.Addr().Unmap().IsLoopback() && isAddressOrLocalhost(hostName(r.Host))
}

func hostName(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

func isAddressOrLocalhost(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil || name == "localhost"
}

// isPrivateName reports whether no site on the internet can have name. A name without a dot is the name of a
// container or of a Kubernetes service.
func isPrivateName(name string) bool {
	hasNoDot := name != "" && !strings.Contains(name, ".")
	hasPrivateSuffix := slices.ContainsFunc([]string{".localhost", ".local", ".internal", ".svc"}, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
	return hasNoDot || hasPrivateSuffix || isAddressOrLocalhost(name)
}

// requireOwnName answers 403 to a request without TLS that addresses the name of a site on the internet, unless
// allowedNames has the name. Otherwise a page of the site could read h by DNS rebinding. requireOwnName checks only requests
// for which mustCheck returns true.
func requireOwnName(allowedNames []string, mustCheck func(*http.Request) bool, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := hostName(r.Host)
		isName := func(ownName string) bool { return hostName(ownName) == name }
		isAllowed := isPrivateName(name) || slices.ContainsFunc(allowedNames, isName)
		if r.TLS == nil && mustCheck(r) && !isAllowed {
			httpError(w, http.StatusForbidden, fmt.Sprintf("host: got %q, want an IP address, localhost, a name of the cluster, or a name in DEBUG_NAMES", r.Host))
			return
		}
		h.ServeHTTP(w, r)
	})
}

func isAnyRequest(*http.Request) bool { return true }

// isFromBrowser reports whether r has a header that only browsers send. Browsers send Origin with each request that has
// a body, and Sec-Fetch-Site to localhost and over HTTPS.
func isFromBrowser(r *http.Request) bool {
	return r.Header["Origin"] != nil || r.Header["Sec-Fetch-Site"] != nil
}

func requireLocal(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsLocal(r) {
			httpError(w, http.StatusForbidden, "profiles are only for callers on the same host; use kubectl port-forward or ssh")
			return
		}
		h(w, r)
	})
}
