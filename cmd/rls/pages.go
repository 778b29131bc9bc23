package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/server"
	runtimechanges "github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// privatePages makes pages that show values of requests. Callers of the admin API may open
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

// newPage returns a page with a check of its callers.
func (p privatePages) newPage(page server.Page) server.Page {
	page.AnyHost = true // the callers are checked here
	next, path := page.Handler, page.Path
	logs := rate.NewLimiter(rate.Every(time.Second), 1)
	page.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.admits(r) {
			next.ServeHTTP(w, r)
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

// admits reports whether the caller may see values of requests.
func (p privatePages) admits(r *http.Request) bool {
	return p.MayReadPages(r) || !p.CanAuthorize() && server.IsLocal(r)
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

// defaultGRPCPort is the port that rls hit asks by default.
const defaultGRPCPort = 8081

// livePage returns the live page and its assets.
func livePage(s *env.Settings, private privatePages, h live.Handlers, x *explain.Explainer) []server.Page {
	o := page.Options{
		Snapshot: h.SnapshotFor,
		Rules:    h.Live.Rules,
		Rule:     h.RuleFor,
		Explain: func(r *http.Request, domain, descriptor string) (*explain.Report, error) {
			if !private.admits(r) {
				return nil, errors.New("explain shows counters: " + private.refusal() + ". Sign in, or use the command rls explain --admin URL")
			}
			req, err := explain.NewRequest(domain, []string{descriptor}, "")
			if err != nil {
				return nil, err
			}
			return x.Explain(r.Context(), req), nil
		},
		Links: []page.Link{
			{Href: "/rlconfig", Name: "Limits"},
			{Href: "/rlconfig/problems", Name: "Problems"},
			{Href: "/metrics", Name: "Metrics"},
			{Href: "/endpoints", Name: "All pages"},
		},
		Log: private.log,
	}
	for _, source := range backend.Sources() {
		o.Sources = append(o.Sources, source.String())
	}
	switch {
	case s.GRPCUDS != "":
		o.GRPCAddr = "unix://" + s.GRPCUDS
	case s.GRPCPort != defaultGRPCPort && s.GRPCPort != 0:
		o.GRPCAddr = fmt.Sprintf("localhost:%d", s.GRPCPort)
	}
	var pages []server.Page
	if private.hasTokens() {
		o.Links = append(o.Links, page.Link{Href: signInPath, Name: "Sign in"})
		help := "asks a browser for a token of ADMIN_TOKEN, as the password of any user"
		pages = append(pages, server.Page{Path: signInPath, Help: help, Handler: http.HandlerFunc(private.signIn)})
	}
	return append(pages,
		server.Page{Path: page.Path, Help: "live page: state, traffic, rules, keys and changes", Handler: page.New(o)},
		server.Page{Path: page.AssetsPath, Handler: page.Assets()})
}

// newLive returns the Live of the process, which samples until p ends. The service
// drains when ctx is done. overrides is nil without OVERRIDES_ENABLED.
func newLive(ctx context.Context, p *process, s *env.Settings, l limits, counters *counterBackend, overrides *runtimeOverrides, candidate *candidateLimits, recorder *live.Recorder, e *events.Events) *live.Live {
	host, _ := os.Hostname()
	o := live.Options{
		Version:    thisBuild().Version,
		Instance:   cmp.Or(host, "unknown"),
		Backend:    s.Backend(),
		ShadowMode: s.ShadowMode,
		Recorder:   recorder,
		Store:      l.store,
		Limits: func() live.Limits {
			status := l.Status()
			return live.Limits{Source: l.source, Since: events.TimeOrNil(status.InForceSince), Problems: status.Problems}
		},
		Counts:   e.Metrics.Rules,
		Draining: func() bool { return ctx.Err() != nil },
		Events:   e.Timeline,
		Keys:     live.KeyMode(s.TopKeys),
		Redis:    counters.state,
	}
	if candidate != nil {
		o.Candidate = func() *live.Candidate { return events.Candidate(candidate.Status()) }
	}
	if overrides != nil {
		o.Overrides = func() []live.Override { return events.Overrides(l.States()) }
		if s.OverridesPlace() == env.OverridesInRedis {
			o.Replicas = countReplicas(p, overrides.Replicas)
		}
	}
	liveView := live.New(o)
	p.start(liveView.Run)
	return liveView
}

// replicasPause is the pause between two reads of the replicas.
const replicasPause = 5 * time.Second

// countReplicas reads the replicas until p ends. It returns a function with the last number of them,
// or 0 if the last read failed.
func countReplicas(p *process, read func(context.Context) ([]runtimechanges.Replica, error)) func() int {
	var count atomic.Int64
	p.start(func(ctx context.Context) {
		for isRunning := true; isRunning; isRunning = wait.Sleep(ctx, replicasPause) {
			limited, cancel := context.WithTimeout(ctx, overrideTimeout)
			replicas, _ := read(limited)
			cancel()
			count.Store(int64(len(replicas)))
		}
	})
	return func() int { return int(count.Load()) }
}

// livePages returns the pages of the debug listener about the traffic of this moment.
func livePages(h live.Handlers) []server.Page {
	return []server.Page{
		{Path: live.SnapshotPath, Help: "the state and the traffic of this moment, as JSON", Handler: http.HandlerFunc(h.Snapshot)},
		{Path: live.StreamPath, Help: "the same each second, as server-sent events", Handler: http.HandlerFunc(h.Stream), Stream: true},
		{Path: live.RulesPath, Help: "rules and their traffic, as JSON; ?filter=TEXT", Handler: http.HandlerFunc(h.Rules)},
		{Path: live.RulePath, Help: "a rule and its busiest keys, as JSON; ?path=PATH", Handler: http.HandlerFunc(h.Rule)},
	}
}
