package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/time/rate"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/base/heap"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/base/watchfile"
	"github.com/seed-81f232ab/rls/internal/observe/candidate"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/service/callers"
	"github.com/seed-81f232ab/rls/service/quota"
)

// pageAccess decides who may open private pages, which show values of requests. Only callers of the admin API may
// open these pages. If the settings allow no such callers, every caller on this host may open them.
type pageAccess struct {
	*admin.Callers
	log *slog.Logger
}

// protect returns the page with a check of the callers that open the page. If showsOneDomain is true, the page shows only
// the domain of its query, so it also admits tokens for this domain.
func (a pageAccess) protect(page server.Page, showsOneDomain bool) server.Page {
	page.AllowsAnyHost = true // the handler below checks the callers
	innerHandler, path := page.Handler, page.Path
	refusal := a.refusal()
	logRate := rate.NewLimiter(rate.Every(time.Second), 1)
	isAllowed := func(r *http.Request) bool { return a.mayOpen(r) || showsOneDomain && a.MayReadDomain(r) }
	page.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isAllowed(r) {
			if page.IsStream {
				ctx, end := context.WithCancel(r.Context())
				var watcher sync.WaitGroup
				watcher.Go(func() {
					defer end() // the caller may no longer open the page, for example because its token is removed
					for isAllowed(r) && wait.Sleep(ctx, time.Second) {
					}
				})
				defer watcher.Wait()
				defer end()
				innerHandler.ServeHTTP(w, r.WithContext(ctx))
				return
			}
			innerHandler.ServeHTTP(w, r)
			return
		}
		if caller, isKnown := a.Authorize(r); isKnown && len(caller.Domains) > 0 {
			remedy := "this page shows all domains; want a token without domains, such as a token with access: read"
			if showsOneDomain {
				remedy = "the query must name one of them (-d DOMAIN)"
			}
			http.Error(w, "Forbidden: the token of "+caller.Name+" is only for the domains "+strings.Join(caller.Domains, ", ")+", and "+remedy, http.StatusForbidden)
			return
		}
		if logRate.Allow() {
			a.log.Warn("page refused", "path", path, "method", r.Method, "from", r.RemoteAddr, "remedy", refusal)
		}
		code := http.StatusForbidden
		if a.CanAuthorize() {
			code = http.StatusUnauthorized
			w.Header().Set("WWW-Authenticate", `Bearer realm="rls admin"`)
		}
		http.Error(w, http.StatusText(code)+": "+refusal, code)
	})
	return page
}

func (a pageAccess) mayOpen(r *http.Request) bool {
	return a.MayReadPages(r) || !a.CanAuthorize() && server.IsLocal(r)
}

func (a pageAccess) refusal() string {
	if a.CanAuthorize() {
		return "send a token of ADMIN_TOKEN as Authorization: Bearer TOKEN, or use a client certificate"
	}
	return "only callers on the same host may open this page; use kubectl port-forward, or set ADMIN_TOKEN"
}

func (a pageAccess) help() string {
	if a.CanAuthorize() {
		return "needs a token or a client certificate"
	}
	return "only for callers on the same host"
}

// signInPath is the path of the page that makes a browser ask for a token. The browser then sends the token to all
// pages of the debug listener.
const signInPath = "/signin"

func (a pageAccess) signIn(w http.ResponseWriter, r *http.Request) {
	if a.mayOpen(r) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="rls: any user, and a token of ADMIN_TOKEN as the password", charset="UTF-8"`)
	http.Error(w, "Unauthorized: enter a token of ADMIN_TOKEN as the password of any user", http.StatusUnauthorized)
}

func livePage(settings *env.Settings, access pageAccess, handlers live.Handlers, explainer *explain.Explainer) []server.Page {
	options := page.Options{
		Snapshot: handlers.SnapshotFor,
		Rules:    handlers.Live.Rules,
		Rule:     handlers.RuleFor,
		Explain: func(r *http.Request, domain, descriptor string) (*explain.Report, error) {
			if !access.mayOpen(r) {
				return nil, errors.New("explain shows counters: " + access.refusal() + ". Sign in, or use the command rls explain --admin URL")
			}
			req, err := explain.NewRequest(domain, []string{descriptor}, "")
			if err != nil {
				return nil, err
			}
			return explainer.Explain(r.Context(), req), nil
		},
		Log: access.log,
	}
	switch {
	case settings.GRPCUDS != "":
		options.GRPCAddr = "unix://" + settings.GRPCUDS
	case settings.GRPCPort != 8081 && settings.GRPCPort != 0: // rls hit uses port 8081 by default
		options.GRPCAddr = fmt.Sprintf("localhost:%d", settings.GRPCPort)
	}
	var pages []server.Page
	if len(access.Tokens) > 0 || access.File != nil {
		options.SignIn = signInPath
		help := "asks a browser for a token of ADMIN_TOKEN, as the password of any user"
		pages = append(pages, server.Page{Path: signInPath, Help: help, Handler: http.HandlerFunc(access.signIn)})
	}
	return append(pages,
		server.Page{Path: page.Path, Help: "live page: state, traffic, rules, keys and changes", Handler: page.New(options)},
		server.Page{Path: page.AssetsPath, Handler: page.Assets()})
}

// newLive returns the live view of the process, which takes samples until the process ends. The service
// drains when ctx is done. overrides is nil if the settings turn overrides off.
func newLive(ctx context.Context, process *process, settings *env.Settings, limits limits, counters *counterBackend, overrides *runtimeOverrides, candidate *candidate.Candidate, recorder *live.Recorder, quotas *quota.Service, serviceEvents *events.Events) *live.Live {
	host, _ := os.Hostname()
	options := live.Options{
		Version:    thisBuild().Version,
		Instance:   cmp.Or(host, "unknown"),
		Name:       replicaName(),
		Backend:    settings.Backend(),
		ShadowMode: settings.ShadowMode,
		Recorder:   recorder,
		Store:      limits.store,
		Limits: func() live.Limits {
			status := limits.Status()
			return live.Limits{Source: limits.source, Since: events.TimeOrNil(status.InForceSince), Problems: status.Problems}
		},
		Counts:        serviceEvents.Metrics.Rules,
		Draining:      func() bool { return ctx.Err() != nil },
		Events:        serviceEvents.Timeline,
		RejectedFiles: serviceEvents.RejectedFiles,
		Log:           serviceEvents.Log,
		Keys:          live.KeyMode(settings.TopKeys),
		Redis:         counters.storeState,
		CPUTime:       cpuTime,
		Process: func() live.Process {
			return live.Process{Cores: runtime.GOMAXPROCS(0), MemoryBytes: heap.ProcessBytes(), Connections: serviceEvents.Metrics.Connections("grpc", "http")}
		},
	}
	if candidate != nil {
		options.Candidate = func() *live.Candidate { return events.Candidate(candidate.Status()) }
	}
	if overrides != nil {
		options.Overrides = func() []live.Override { return events.Overrides(limits.States()) }
		options.Reports = overrides.lastReports
	}
	if quotas != nil {
		options.Quotas = func() []quota.RuleStats { return quotas.Stats().Rules }
	}
	liveView := live.New(options)
	limits.liveView.Store(liveView)
	serviceEvents.Metrics.RulesDenyingSinceChange(liveView.RulesDenyingSinceChange)
	process.start(liveView.Run)
	return liveView
}

func liveJSONPages(handlers live.Handlers) []server.Page {
	return []server.Page{
		{Path: live.SnapshotPath, Help: "the state and the traffic of this moment, as JSON", Handler: http.HandlerFunc(handlers.Snapshot)},
		{Path: live.StreamPath, Help: "the state and the traffic each second, as server-sent events", Handler: http.HandlerFunc(handlers.Stream), IsStream: true},
		{Path: live.RulesPath, Help: "rules and their traffic, as JSON; ?filter=TEXT", Handler: http.HandlerFunc(handlers.Rules)},
		{Path: live.RulePath, Help: "a rule and its busiest keys, as JSON; ?path=PATH", Handler: http.HandlerFunc(handlers.Rule)},
	}
}

// checkCallerDomains returns a service that refuses a call if the caller may not use the domain, and otherwise calls next.
// checkDomain makes the same check. Both follow changes of the file until the process ends. Without CALLER_DOMAINS_FILE,
// checkCallerDomains returns next and no checkDomain.
func checkCallerDomains(process *process, settings *env.Settings, next rlsv3.RateLimitServiceServer, serviceEvents *events.Events) (
	_ rlsv3.RateLimitServiceServer, checkDomain func(context.Context, string) error, _ error,
) {
	if settings.CallerDomainsFile == "" {
		return next, nil, nil
	}
	countRefusal, countReload := serviceEvents.Metrics.Callers()
	file, err := callers.Open(settings.CallerDomainsFile, func(err error) {
		countReload(err)
		serviceEvents.FileReloaded("callers", settings.CallerDomainsFile, err)
	}, serviceEvents.Log)
	if err != nil {
		return nil, nil, err
	}
	process.start(file.Run)
	checkedService := callers.NewService(next, file, countRefusal, serviceEvents.Log)
	return checkedService, checkedService.CheckDomain, nil
}

// newCallers returns the callers that may use the admin API. If the file ADMIN_TOKENS_FILE changes, the
// callers change too, until the process ends.
func newCallers(process *process, settings *env.Settings, serviceEvents *events.Events) (*admin.Callers, error) {
	callers := &admin.Callers{Tokens: settings.AdminTokens, ClientCerts: settings.DebugTLSClientCACert != ""}
	if settings.AdminTokensFile == "" {
		return callers, nil
	}
	callers.File = &admin.TokenFile{}
	apply := func(contents [][]byte) error {
		err := callers.File.Set(contents[0])
		for name, fileName := range callers.DuplicateTokens() {
			serviceEvents.Log.Warn("admin token is in both ADMIN_TOKEN and ADMIN_TOKENS_FILE", "name", name, "name_in_file", fileName,
				"effect", "changes with this token are by "+name+", and the token stays valid after its removal from the file")
		}
		return err
	}
	setValid := serviceEvents.Metrics.TokensFileValidity()
	file, err := watchfile.Read(watchfile.Options{
		Paths: []string{settings.AdminTokensFile}, ContentName: "admin tokens", Apply: apply, Log: serviceEvents.Log,
		Observe: func(err error) {
			setValid(err)
			serviceEvents.FileReloaded("admin tokens", settings.AdminTokensFile, err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("ADMIN_TOKENS_FILE=%q: %w", settings.AdminTokensFile, err)
	}
	process.start(file.Watch)
	return callers, nil
}

// adminPages returns the page of the admin API, or no page if the settings allow no callers.
// overrides is nil if the settings turn overrides off.
func adminPages(callers *admin.Callers, limits limits, counters *counterBackend, layer backend.Layer, overrides *runtimeOverrides, log *slog.Logger) []server.Page {
	if !callers.CanAuthorize() {
		return nil
	}
	options := admin.Options{
		Callers: *callers,
		Counters: admin.Counters{
			Limits:     limits.store,
			Layer:      layer,
			PerReplica: counters.isPerReplica,
			Prefixes:   counters.prefixResetter,
			Now:        time.Now,
		},
		Log: log,
	}
	if overrides != nil {
		options.Overrides, options.Counters.PublishReset, options.LimitsVersions = overrides, overrides.publishReset, overrides.limitsVersions
	}
	return []server.Page{{Path: admin.Prefix, Help: "overrides of limits, rules, switches and counters; needs a token or a client certificate", Handler: admin.New(options), AllowsAnyHost: true}}
}
