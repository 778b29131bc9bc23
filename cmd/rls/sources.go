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
	source string // events.SourceFile or events.SourceXDS; overrides have another source

	liveView *atomic.Pointer[live.Live] // has the figures for the report of this replica; nil while the service starts
}

func newLimits(settings *env.Settings, serviceEvents *events.Events) limits {
	source := events.SourceFile
	if settings.ConfigType == env.ConfigXDS {
		source = events.SourceXDS
	}
	sources := []string{source}
	if settings.OverridesPlace() != env.OverridesOff {
		sources = append(sources, events.SourceOverrides)
	}
	store := &descriptors.Store{Prepare: serviceEvents.Metrics.PrepareRules, Observer: serviceEvents.Conditions()}
	options := reload.Options{Store: store, Observer: serviceEvents.Limits(settings.HealthyWithAtLeastOneConfigLoad, sources...), Log: serviceEvents.Log}
	limits := limits{reload.New(options), store, source, &atomic.Pointer[live.Live]{}}
	serviceEvents.Metrics.ConfigHash(limits.hash)
	return limits
}

// hash returns the hash of the limits in force, or an empty text if no limits are loaded.
func (l limits) hash() string {
	if config := l.store.Load(); config != nil {
		return config.Hash()
	}
	return ""
}

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

// followLimits keeps the limits up to date until the process ends. If limits come from files, the limits are in force
// when followLimits returns without an error.
func followLimits(process *process, settings *env.Settings, limits limits, serviceEvents *events.Events) error {
	if settings.ConfigType == env.ConfigXDS {
		client, err := xds.New(xdsOptions(settings, serviceEvents.Log))
		if err != nil {
			return err
		}
		if !settings.ForceStartWithoutInitialConfig {
			serviceEvents.Health.Set("xds", false, "no valid limits received from the xDS server yet")
		}
		process.onHangup(func() { serviceEvents.Log.Info("SIGHUP ignored", "reason", "limits come from the xDS server") })
		process.start(func(ctx context.Context) { _ = limits.Follow(ctx, limits.source, client, nil) })
		return nil
	}
	files := filesource.New(filesource.Options{
		Place:    limitsPlace(settings),
		Interval: settings.SourcePollInterval,
		Parse:    settings.LimitsOptions(),
		Log:      serviceEvents.Log,
	})
	process.onHangup(files.Reload)
	firstResult := make(chan error, 1)
	process.start(func(ctx context.Context) { _ = limits.Follow(ctx, limits.source, files, firstResult) })
	err := <-firstResult
	switch {
	case err == nil:
		return nil
	case settings.ForceStartWithoutInitialConfig:
		serviceEvents.Log.Warn("service started without limits; calls fail until valid limits arrive")
		return nil
	}
	advice := ""
	if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, filesource.ErrNoFiles)) && settings.LimitsPath == "" {
		advice = "; set LIMITS_PATH or --limits if the limits files are in another place"
	}
	return fmt.Errorf("no limits to start with%s; restore the last good limits files, or correct them with rls check. With FORCE_START_WITHOUT_INITIAL_CONFIG=true the service starts, but each call fails until valid limits arrive", advice)
}

func limitsPlace(settings *env.Settings) filesource.Place {
	place := filesource.Place{Root: settings.LimitsPath, IgnoreDotFiles: settings.RuntimeIgnoreDotFiles}
	if settings.LimitsPath == "" {
		place.Root, place.Subdirectory, place.AppDirectory = settings.RuntimeRoot, settings.RuntimeSubdirectory, settings.RuntimeAppDirectory
		place.WatchRoot = settings.RuntimeWatchRoot
	}
	return place
}

func xdsOptions(settings *env.Settings, log *slog.Logger) xds.Options {
	options := xds.Options{
		Server:          settings.XDSServer,
		NodeID:          settings.XDSNodeID,
		NodeMetadata:    settings.XDSNodeMetadata,
		Headers:         settings.XDSHeaders,
		MaxMessageBytes: settings.XDSMaxMessageBytes,
		Backoff:         wait.Backoff{Initial: min(settings.XDSBackoffInitial, settings.XDSBackoffMax), Max: settings.XDSBackoffMax},
		Parse:           settings.LimitsOptions(),
		Log:             log,
	}
	if settings.XDSBackoffJitter {
		options.Backoff.Jitter = min(settings.XDSBackoffRandom, 1)
	}
	if settings.XDSUseTLS {
		options.TLS = &clienttls.Files{CA: settings.XDSTLSCACert, Cert: settings.XDSTLSCert, Key: settings.XDSTLSKey, ServerName: settings.XDSTLSSAN}
	}
	return options
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

// Outage implements admin.Overrides.
func (o *runtimeOverrides) Outage() error { return o.Status().Outages[events.SourceOverrides] }

// keepVersions stores each version of the limits without overrides, so that the history also shows changes of files.
func (l limits) keepVersions(ctx context.Context, store *overrides.Store) {
	const pause = 2 * time.Second
	var storedSet *limitsfile.Set
	var storedVersion *runtimechanges.LimitsVersion
	for isRunning := true; isRunning; isRunning = wait.Sleep(ctx, pause) {
		base := l.Base()
		if base == nil || base == storedSet {
			continue
		}
		version := runtimechanges.LimitsVersion{LoadedAt: time.Now().UTC(), Source: l.source, Limits: map[string]string{}}
		for _, limit := range descriptors.Compile(base).ChangesFrom(nil).Added {
			version.Limits[limit.Path] = limit.New
		}
		if store.AddLimitsVersion(ctx, version, storedVersion) == nil { // after an error, the loop tries again
			storedSet, storedVersion = base, &version
		}
	}
}

type overrideStore interface {
	source.Source
	MakeChange(context.Context, runtimechanges.Change) (runtimechanges.Result, error)
	History(context.Context) ([]runtimechanges.Entry, error)
	Replicas(context.Context) ([]runtimechanges.Replica, error)
}

const (
	overrideTimeout = time.Second

	// An expired override stays in Redis for expiredRetention, so that a replica with a slow clock does not lose it too
	// early.
	expiredRetention = time.Minute
)

// newOverrides keeps the overrides up to date until the process ends. It returns nil if the settings turn overrides off.
// resets applies the counter resets of all replicas.
func newOverrides(process *process, settings *env.Settings, limits limits, resets admin.Resets, log *slog.Logger) (*runtimeOverrides, error) {
	isExpired := func(value string, now time.Time) bool {
		return override.NotesOf(value).HasExpired(now.Add(-expiredRetention))
	}
	result := &runtimeOverrides{limits: limits}
	switch settings.OverridesPlace() {
	case env.OverridesOff:
		return nil, nil
	case env.OverridesInMemory:
		result.overrideStore = &runtimechanges.Memory{IsExpired: isExpired, Report: limits.report}
	default:
		server, err := addTLS(settings, settings.Redis(), settings.RedisTLS)
		timeout := overrideTimeout
		if settings.GlobalURL != "" {
			server, err = addTLS(settings, settings.GlobalRedis(), settings.GlobalTLS)
			timeout = max(timeout, settings.GlobalTimeout)
		}
		if err != nil {
			return nil, err
		}
		client, name, err := redis.Connect(server, timeout)
		if err != nil {
			return nil, err
		}
		store := overrides.New(overrides.Options{
			Client:         client,
			Prefix:         settings.CacheKeyPrefix,
			Resync:         30 * time.Second,
			IsExpired:      isExpired,
			Report:         limits.report,
			OnReset:        resets.ForgetCounter,
			OnMissedResets: resets.ForgetAll,
			Log:            log.With("redis", name),
		})
		result.overrideStore, result.publishReset, result.limitsVersions, result.lastReports = store, store.PublishReset, store.LimitsVersions, store.LastReports
		process.start(func(ctx context.Context) { limits.keepVersions(ctx, store) })
		process.addCloser(func() { _ = client.Close() })
	}
	firstResult := make(chan error, 1)
	process.start(func(ctx context.Context) {
		// The store logs its outages, so the error is not needed here.
		_ = limits.Follow(ctx, events.SourceOverrides, result.overrideStore, firstResult)
	})
	// newOverrides waits, so that the overrides are in force at the first call. In an outage of Redis, the service
	// starts without overrides.
	select {
	case <-firstResult:
	case <-time.After(overrideTimeout):
	}
	return result, nil
}

var processStart = time.Now()

func replicaName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

func (l limits) report() runtimechanges.Replica {
	replica := runtimechanges.Replica{
		Name:       replicaName(),
		Build:      thisBuild().Version,
		Started:    processStart.UTC().Truncate(time.Second),
		Limits:     l.hash(),
		BaseLimits: l.BaseLimitsHash(),
		Problems:   len(l.Status().Problems),
	}
	if liveView := l.liveView.Load(); liveView != nil {
		replica.Figures = liveView.ReplicaFigures()
	}
	return replica
}
