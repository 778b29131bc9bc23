package main

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/server"
)

// privatePage returns a page that shows values of requests, or changes this process.
// Callers of the admin API may open it. If there are none, callers on this host may. A page
// of another site can't change anything through the browser of such a caller.
func privatePage(callers *admin.Callers, p server.Page, log *slog.Logger) server.Page {
	p.AnyHost = true // the callers are checked here
	isAllowed, next := privateCaller(callers), http.NewCrossOriginProtection().Handler(p.Handler)
	code := http.StatusForbidden
	if callers.CanAuthorize() {
		code = http.StatusUnauthorized
	}
	logs := rate.NewLimiter(rate.Every(time.Second), 1)
	p.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, authorized := isAllowed(r)
		if !authorized {
			if logs.Allow() {
				log.Warn("page refused", "path", p.Path, "method", r.Method, "from", r.RemoteAddr, "remedy", privateRefusal(callers))
			}
			if code == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="rls admin"`)
			}
			http.Error(w, http.StatusText(code)+": "+privateRefusal(callers), code)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, name)))
	})
	return p
}

// privateCaller returns a function that reports whether a caller may see values of requests,
// and the name of the caller.
func privateCaller(callers *admin.Callers) func(*http.Request) (name string, ok bool) {
	return func(r *http.Request) (string, bool) {
		name, ok := callers.Reader(r)
		if !ok && !callers.CanAuthorize() && server.IsLocal(r) {
			return "same host", true
		}
		return name, ok
	}
}

// privateRefusal says who may open a private page.
func privateRefusal(callers *admin.Callers) string {
	if callers.CanAuthorize() {
		return "send a token of ADMIN_TOKEN as Authorization: Bearer TOKEN, or use a client certificate"
	}
	return "only callers on the same host may open this page; use kubectl port-forward, or set ADMIN_TOKEN"
}

// privateHelp says in the list of pages who may open a private page.
func privateHelp(callers *admin.Callers) string {
	if callers.CanAuthorize() {
		return "needs a token or a client certificate"
	}
	return "only for callers on the same host"
}

// signInPath is the page that makes a browser ask for a token.
const signInPath = "/signin"

// signInPage returns the page that signs a browser in, or none if there are no tokens. The
// browser then sends the token to all pages of the debug listener.
func signInPage(callers *admin.Callers) []server.Page {
	if !hasTokens(callers) {
		return nil
	}
	isAllowed := privateCaller(callers)
	return []server.Page{{
		Path: signInPath,
		Help: "asks a browser for a token of ADMIN_TOKEN, as the password of any user",
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, ok := isAllowed(r); !ok {
				w.Header().Set("WWW-Authenticate", `Basic realm="rls: any user, and a token of ADMIN_TOKEN as the password", charset="UTF-8"`)
				http.Error(w, "Unauthorized: enter a token of ADMIN_TOKEN as the password of any user", http.StatusUnauthorized)
				return
			}
			http.Redirect(w, r, "/", http.StatusSeeOther)
		}),
	}}
}

// hasTokens reports whether any caller can have a token.
func hasTokens(callers *admin.Callers) bool { return len(callers.Tokens) > 0 || callers.File != nil }

// callerKey is the key of the caller's name in the context of a private page.
type callerKey struct{}

// callerName returns the name of the caller of a private page.
func callerName(r *http.Request) string {
	name, _ := r.Context().Value(callerKey{}).(string)
	return name
}
