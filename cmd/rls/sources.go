package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
	"github.com/seed-81f232ab/rls/internal/source/reload"
	"github.com/seed-81f232ab/rls/internal/source/xds"
)

// Names of the sources in metrics.
const (
	sourceFile      = "file"
	sourceXDS       = "xds"
	sourceOverrides = "overrides"
)

// limits are the limits in force and what keeps them up to date.
type limits struct {
	*reload.Reloader
	store *descriptors.Store
}

func newLimits(s *env.Settings, health *server.Health, meter *metrics.Metrics, events changes, log *slog.Logger) limits {
	sources := []string{sourceFile}
	if s.ConfigType == env.ConfigXDS {
		sources = []string{sourceXDS}
	}
	if s.OverridesPlace() != env.OverridesOff {
		sources = append(sources, sourceOverrides)
	}
	o := reloadObserver{meter.Reload(sources...), s, health, events, log}
	o.setHealth(0)
	store := &descriptors.Store{Prepare: meter.PrepareRules, Observer: &conditionObserver{Observer: meter.Conditions(), log: log}}
	meter.ConfigHash(func() string {
		if config := store.Load(); config != nil {
			return config.Hash()
		}
		return ""
	})
	return limits{reload.New(reload.Options{Store: store, Observer: o, Log: log}), store}
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

// reloadObserver reports reloads to the metrics, to the readers of /healthcheck and to the
// timeline.
type reloadObserver struct {
	reload.Observer // the metrics
	settings        *env.Settings
	health          *server.Health
	events          changes
	log             *slog.Logger
}

// LimitsLoaded implements reload.Observer.
func (o reloadObserver) LimitsLoaded(domains int) {
	o.Observer.LimitsLoaded(domains)
	o.setHealth(domains)
	o.health.Set("xds", true, "")
}

// LimitsChanged implements reload.Observer.
func (o reloadObserver) LimitsChanged(c reload.LimitsChange) {
	o.Observer.LimitsChanged(c)
	o.events.limitsChanged(c)
}

// LimitsRejected implements reload.Observer.
func (o reloadObserver) LimitsRejected(err error) {
	o.Observer.LimitsRejected(err)
	o.events.limitsRejected(err)
}

// OverridesChanged implements reload.Observer.
func (o reloadObserver) OverridesChanged(all []reload.OverrideChange) {
	o.Observer.OverridesChanged(all)
	o.events.overridesChanged(all)
	auditDirectWrites(all, o.log)
}

func (o reloadObserver) setHealth(domains int) {
	if o.settings.HealthyWithAtLeastOneConfigLoad {
		o.health.Set("config", domains > 0, "no limits loaded")
	}
}

// SourceState implements reload.Observer.
func (o reloadObserver) SourceState(source string, err error) {
	o.Observer.SourceState(source, err)
	o.events.sourceChanged(source, err)
	if source != sourceOverrides {
		return
	}
	note := ""
	if err != nil {
		note = fmt.Sprintf("unreadable since %s; the last overrides stay in force", time.Now().UTC().Format(time.RFC3339))
	}
	o.health.Note(source, note)
}

// followLimits keeps l up to date until p ends. Limits files are in force when it returns.
func followLimits(p *process, s *env.Settings, l limits, health *server.Health, log *slog.Logger) error {
	if s.ConfigType == env.ConfigXDS {
		client, err := xds.New(xdsOptions(s, log))
		if err != nil {
			return err
		}
		if !s.ForceStartWithoutInitialConfig {
			health.Set("xds", false, "no valid limits received from the xDS server yet")
		}
		p.onHangup(func() { log.Info("SIGHUP ignored", "reason", "limits come from the xDS server") })
		p.start(func(ctx context.Context) { _ = l.Follow(ctx, sourceXDS, client, nil) })
		return nil
	}
	files := filesource.New(filesource.Options{
		Place:    limitsPlace(s),
		Interval: s.SourcePollInterval,
		Parse:    limitsfile.Options{MergeDomains: s.MergeDomainConfig, LimitedStore: s.LimitedStore()},
		Log:      log,
	})
	p.onHangup(files.Reload)
	started := make(chan error, 1)
	p.start(func(ctx context.Context) { _ = l.Follow(ctx, sourceFile, files, started) })
	err := <-started
	switch {
	case err == nil:
		return nil
	case s.ForceStartWithoutInitialConfig:
		log.Warn("service started without limits; calls fail until valid limits arrive")
		return nil
	}
	advice := ""
	if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, filesource.ErrNoFiles)) && s.LimitsPath == "" {
		advice = "; set LIMITS_PATH or --limits if the limits files are in another place"
	}
	return fmt.Errorf("no limits to start with%s; FORCE_START_WITHOUT_INITIAL_CONFIG=true starts without limits", advice)
}

// limitsPlace returns the place of the limits files according to the settings.
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
		Parse:           limitsfile.Options{MergeDomains: s.MergeDomainConfig, LimitedStore: s.LimitedStore()},
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
