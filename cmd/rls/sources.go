package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/source"
	runtimechanges "github.com/seed-81f232ab/rls/internal/source/changes"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/source/reload"
	"github.com/seed-81f232ab/rls/internal/source/xds"
)

// limits has the limits in force, and the Reloader that puts new limits in force.
type limits struct {
	*reload.Reloader
	store  *descriptors.Store
	source string // events.SourceFile or events.SourceXDS; overrides are a second source

	live *atomic.Pointer[live.Live] // has the figures for the report of this replica; empty while the service starts
}

func newLimits(s *env.Settings, e *events.Events) limits {
	source := events.SourceFile
	if s.ConfigType == env.ConfigXDS {
		source = events.SourceXDS
	}
	sources := []string{source}
	if s.OverridesPlace() != env.OverridesOff {
		sources = append(sources, events.SourceOverrides)
	}
	store := &descriptors.Store{Prepare: e.Metrics.PrepareRules, Observer: e.Conditions()}
	o := reload.Options{Store: store, Observer: e.Limits(s.HealthyWithAtLeastOneConfigLoad, sources...), Log: e.Log}
	l := limits{reload.New(o), store, source, &atomic.Pointer[live.Live]{}}
	e.Metrics.ConfigHash(l.hash)
	return l
}

// hash returns the hash of the limits in force, or an empty text if no limits are loaded.
func (l limits) hash() string {
	if config := l.store.Load(); config != nil {
		return config.Hash()
	}
	return ""
}

// pages returns the pages of the debug listener about limits.
func (l limits) pages() []server.Page {
	return []server.Page{
		{Path: "/rlconfig", Help: "the limits in force", Handler: textPage(l.WriteLimits)},
		{Path: "/rlconfig/problems", Help: "why the newest limits or overrides are not in force", Handler: textPage(l.WriteProblems)},
	}
}

func textPage(write func(io.Writer)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		write(w)
	})
}

// followLimits keeps l up to date until p ends. If limits come from files, they are in force when it returns without an error.
func followLimits(p *process, s *env.Settings, l limits, e *events.Events) error {
	if s.ConfigType == env.ConfigXDS {
		client, err := xds.New(xdsOptions(s, e.Log))
		if err != nil {
			return err
		}
		if !s.ForceStartWithoutInitialConfig {
			e.Health.Set("xds", false, "no valid limits received from the xDS server yet")
		}
		p.onHangup(func() { e.Log.Info("SIGHUP ignored", "reason", "limits come from the xDS server") })
		p.start(func(ctx context.Context) { _ = l.Follow(ctx, l.source, client, nil) })
		return nil
	}
	files := filesource.New(filesource.Options{
		Place:    limitsPlace(s),
		Interval: s.SourcePollInterval,
		Parse:    s.LimitsOptions(),
		Log:      e.Log,
	})
	p.onHangup(files.Reload)
	firstResult := make(chan error, 1)
	p.start(func(ctx context.Context) { _ = l.Follow(ctx, l.source, files, firstResult) })
	err := <-firstResult
	switch {
	case err == nil:
		return nil
	case s.ForceStartWithoutInitialConfig:
		e.Log.Warn("service started without limits; calls fail until valid limits arrive")
		return nil
	}
	advice := ""
	if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, filesource.ErrNoFiles)) && s.LimitsPath == "" {
		advice = "; set LIMITS_PATH or --limits if the limits files are in another place"
	}
	return fmt.Errorf("no limits to start with%s; restore the last good limits files, or correct them with rls check. With FORCE_START_WITHOUT_INITIAL_CONFIG=true the service starts, but each call fails until valid limits arrive", advice)
}

func limitsPlace(s *env.Settings) filesource.Place {
	p := filesource.Place{Root: s.LimitsPath, IgnoreDotFiles: s.RuntimeIgnoreDotFiles}
	if s.LimitsPath == "" {
		p.Root, p.Subdirectory, p.AppDirectory = s.RuntimeRoot, s.RuntimeSubdirectory, s.RuntimeAppDirectory
		p.WatchRoot = s.RuntimeWatchRoot
	}
	return p
}

func xdsOptions(s *env.Settings, log *slog.Logger) xds.Options {
	o := xds.Options{
		Server:          s.XDSServer,
		NodeID:          s.XDSNodeID,
		NodeMetadata:    s.XDSNodeMetadata,
		Headers:         s.XDSHeaders,
		MaxMessageBytes: s.XDSMaxMessageBytes,
		Backoff:         wait.Backoff{Initial: min(s.XDSBackoffInitial, s.XDSBackoffMax), Max: s.XDSBackoffMax},
		Parse:           s.LimitsOptions(),
		Log:             log,
	}
	if s.XDSBackoffJitter {
		o.Backoff.Jitter = min(s.XDSBackoffRandom, 1)
	}
	if s.XDSUseTLS {
		o.TLS = &clienttls.Files{CA: s.XDSTLSCACert, Cert: s.XDSTLSCert, Key: s.XDSTLSKey, ServerName: s.XDSTLSSAN}
	}
	return o
}

// runtimeOverrides are the overrides, rules and switches that can be changed while the service
// runs. It implements admin.Overrides.
type runtimeOverrides struct {
	limits
	overrideStore

	// publishReset sends a counter reset to the other replicas. It is nil without Redis.
	publishReset func(ctx context.Context, counter string) error

	// limitsVersions returns the last versions of the limits without overrides. It is nil without Redis.
	limitsVersions func(context.Context) ([]runtimechanges.LimitsVersion, error)

	// lastReports returns the last reports of all replicas. It is nil without Redis.
	lastReports func() runtimechanges.Reports
}

// keepVersions stores each version of the limits without overrides, so that the history also shows changes of files.
func (l limits) keepVersions(ctx context.Context, store *overrides.Store) {
	const pause = 2 * time.Second
	var storedSet *limitsfile.Set
	for isRunning := true; isRunning; isRunning = wait.Sleep(ctx, pause) {
		base := l.Base()
		if base == nil || base == storedSet {
			continue
		}
		v := runtimechanges.LimitsVersion{LoadedAt: time.Now().UTC(), Source: l.source, Limits: map[string]string{}}
		for _, limit := range descriptors.Compile(base).ValueChangesFrom(nil) {
			v.Limits[limit.Path] = limit.New
		}
		if store.AddLimitsVersion(ctx, v) == nil { // after an error, the next turn tries again
			storedSet = base
		}
	}
}

// overrideStore stores overrides in Redis, or in memory.
type overrideStore interface {
	source.Source
	MakeChange(context.Context, runtimechanges.Change) (runtimechanges.Result, error)
	History(context.Context) ([]runtimechanges.Entry, error)
	Replicas(context.Context) ([]runtimechanges.Replica, error)
}

const (
	// overrideTimeout bounds each command to Redis about overrides.
	overrideTimeout = time.Second

	// expiredRetention is the time for which an expired override stays in Redis, so that a
	// replica whose clock is behind doesn't lose it early.
	expiredRetention = time.Minute
)

// newOverrides keeps the overrides of l up to date until p ends. It returns nil if the settings turn overrides off.
// resets applies the counter resets of all replicas.
func newOverrides(p *process, s *env.Settings, l limits, resets admin.Resets, log *slog.Logger) (*runtimeOverrides, error) {
	isExpired := func(value string, now time.Time) bool {
		return override.NotesOf(value).HasExpired(now.Add(-expiredRetention))
	}
	r := &runtimeOverrides{limits: l}
	switch s.OverridesPlace() {
	case env.OverridesOff:
		return nil, nil
	case env.OverridesInMemory:
		r.overrideStore = &runtimechanges.Memory{IsExpired: isExpired, Report: l.report}
	default:
		mainServer, err := addTLS(s, s.Redis(), s.RedisTLS)
		if err != nil {
			return nil, err
		}
		client, name, err := redis.Connect(mainServer, overrideTimeout)
		if err != nil {
			return nil, err
		}
		store := overrides.New(overrides.Options{
			Client:         client,
			Prefix:         s.CacheKeyPrefix,
			Resync:         30 * time.Second,
			IsExpired:      isExpired,
			Report:         l.report,
			OnReset:        resets.ForgetCounter,
			OnMissedResets: resets.ForgetAll,
			Log:            log.With("redis", name),
		})
		r.overrideStore, r.publishReset, r.limitsVersions, r.lastReports = store, store.PublishReset, store.LimitsVersions, store.LastReports
		p.start(func(ctx context.Context) { l.keepVersions(ctx, store) })
		p.addCloser(func() { _ = client.Close() })
	}
	firstResult := make(chan error, 1)
	p.start(func(ctx context.Context) {
		// The store logs its outages, so the error is not needed here.
		_ = l.Follow(ctx, events.SourceOverrides, r.overrideStore, firstResult)
	})
	// Wait for the overrides, so that they are in force at the first call. In an outage of Redis, the service
	// starts without them.
	select {
	case <-firstResult:
	case <-time.After(overrideTimeout):
	}
	return r, nil
}

var processStart = time.Now()

// replicaName returns the name of this process in its reports.
func replicaName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

func (l limits) report() runtimechanges.Replica {
	r := runtimechanges.Replica{
		Name:     replicaName(),
		Build:    thisBuild().Version,
		Started:  processStart.UTC().Truncate(time.Second),
		Limits:   l.hash(),
		Problems: len(l.Status().Problems),
	}
	if liveView := l.live.Load(); liveView != nil {
		r.Figures = liveView.ReplicaFigures()
	}
	return r
}
