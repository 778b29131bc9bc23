package main

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// privatePages makes pages that show values of requests, or change this process. Callers of the admin API may open
// them. If there are none, callers on this host may.
type privatePages struct {
	*admin.Callers
	log *slog.Logger
}

// explain returns the page that explains the answer to a request. It shows counters.
func (p privatePages) explain(x *explain.Explainer) server.Page {
	return p.newPage(server.Page{Path: explain.Path, Help: "why a request is limited or not; ?domain=DOMAIN&descriptor=KEY=VALUE,KEY=VALUE", Handler: x})
}

// decisions returns the page of the live stream.
func (p privatePages) decisions(hub *decisionlog.Hub) server.Page {
	return p.newPage(server.Page{Path: decisionsPath, Help: "a stream of live decisions, for rls tail; " + p.help(), Handler: hub, Stream: true})
}

// newPage returns a page with a check of its callers. A page of another site can't change anything through the
// browser of a caller.
func (p privatePages) newPage(page server.Page) server.Page {
	page.AnyHost = true // the callers are checked here
	next, path := http.NewCrossOriginProtection().Handler(page.Handler), page.Path
	logs := rate.NewLimiter(rate.Every(time.Second), 1)
	page.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, isAllowed := p.caller(r)
		if isAllowed {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, name)))
			return
		}
		if logs.Allow() {
			p.log.Warn("page refused", "path", path, "method", r.Method, "from", r.RemoteAddr, "remedy", p.refusal())
		}
		code := http.StatusForbidden
		if p.CanAuthorize() {
			code = http.StatusUnauthorized
			w.Header().Set("WWW-Authenticate", `Bearer realm="rls admin"`)
		}
		http.Error(w, http.StatusText(code)+": "+p.refusal(), code)
	})
	return page
}

// caller returns the name of a caller that may see values of requests.
func (p privatePages) caller(r *http.Request) (name string, isAllowed bool) {
	if !p.CanAuthorize() && server.IsLocal(r) {
		return "same host", true
	}
	return p.Reader(r)
}

// admits reports whether the caller may see values of requests.
func (p privatePages) admits(r *http.Request) bool {
	_, isAllowed := p.caller(r)
	return isAllowed
}

// refusal says who may open a private page.
func (p privatePages) refusal() string {
	if p.CanAuthorize() {
		return "send a token of ADMIN_TOKEN as Authorization: Bearer TOKEN, or use a client certificate"
	}
	return "only callers on the same host may open this page; use kubectl port-forward, or set ADMIN_TOKEN"
}

// help says in the list of pages who may open a private page.
func (p privatePages) help() string {
	if p.CanAuthorize() {
		return "needs a token or a client certificate"
	}
	return "only for callers on the same host"
}

// signInPath is the path of the page that makes a browser ask for a token. The browser then sends the token to all
// pages of the debug listener.
const signInPath = "/signin"

// hasTokens reports whether any caller can have a token.
func (p privatePages) hasTokens() bool { return len(p.Tokens) > 0 || p.File != nil }

// signIn signs a browser in.
func (p privatePages) signIn(w http.ResponseWriter, r *http.Request) {
	if p.admits(r) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="rls: any user, and a token of ADMIN_TOKEN as the password", charset="UTF-8"`)
	http.Error(w, "Unauthorized: enter a token of ADMIN_TOKEN as the password of any user", http.StatusUnauthorized)
}

// callerKey is the key of the caller's name in the context of a private page.
type callerKey struct{}

// callerName returns the name of the caller of a private page.
func callerName(r *http.Request) string {
	name, _ := r.Context().Value(callerKey{}).(string)
	return name
}
