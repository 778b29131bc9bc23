package main

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/source"
)

// limitsFiles keeps the files that the settings point to in force.
type limitsFiles struct {
	*limits
	options descriptors.Options
	watcher *source.Watcher
	digests source.Digests  // of the files in force
	noted   map[string]bool // what is remarked about the files read last
}

// loadFiles puts the files in force as they are now. The error tells all that is
// wrong with them; they can be followed all the same.
func loadFiles(s *env.Settings, l *limits) (*limitsFiles, error) {
	place := source.Runtime{Root: s.LimitsPath}
	var hint error
	f := &limitsFiles{limits: l, options: descriptors.Options{MergeDomains: s.MergeDomainConfig}}
	if s.LimitsPath == "" {
		place = source.Runtime{
			Root:         s.RuntimeRoot,
			Subdirectory: s.RuntimeSubdirectory,
			AppDirectory: s.RuntimeAppDirectory,
			WatchRoot:    s.RuntimeWatchRoot,
		}
		hint = errors.New("LIMITS_PATH or --limits names another place")
	}
	f.watcher = source.NewWatcher(place, source.Options{IgnoreDotFiles: s.RuntimeIgnoreDotFiles}, source.WatchOptions{
		Poll: s.LimitsPollInterval,
		OnBlind: func(err error) {
			l.log.Warn("the system tells of no changes of limits files; looking from time to time", "every", s.LimitsPollInterval, "error", err)
		},
		OnRestless: func(since time.Duration) {
			l.log.Warn("limits files change without rest; changes wait until there is one", "since", since.Round(time.Second))
		},
	})
	err := f.load(f.watcher.First())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, source.ErrNoFiles) {
		err = errors.Join(err, hint)
	}
	return f, err
}

// follow keeps the files in force until ctx is done. SIGHUP reads them at once.
func (f *limitsFiles) follow(ctx context.Context, hangups <-chan os.Signal) {
	go onEach(ctx, hangups, f.watcher.Reload)
	f.watcher.Run(ctx, func(r source.Reading) {
		if err := f.load(r); err != nil {
			f.refuse(err, r.Asked)
		}
	})
}

// load compiles what was read and puts it in force.
func (f *limitsFiles) load(r source.Reading) (err error) {
	// Compiling needs many times the memory of what comes of it, for a moment.
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	noted := map[string]bool{}
	defer func() {
		if err != nil { // what was remarked about those in force still holds
			maps.Copy(noted, f.noted)
		}
		f.noted = noted
	}()
	note := func(text string, args ...any) {
		if noted[text] = true; !f.noted[text] {
			f.log.Warn(text, args...)
		}
	}
	for _, s := range r.Skipped {
		note("skipped beside the limits: "+s.Path, "reason", s.Reason)
	}
	if r.Err != nil {
		return r.Err
	}
	cfg, err := descriptors.Compile(r.Files, f.options)
	if err != nil {
		return err
	}
	for _, p := range cfg.Warnings {
		note("limits file: " + p.String())
	}
	from := []any{"files", len(r.Files)}
	if changed := r.Digests.Changed(f.digests); len(changed) > 0 {
		from = append(from, "changed_files", few(changed))
	}
	f.digests = r.Digests
	f.install(cfg, from...)
	return nil
}

// onEach calls f at each signal until ctx is done.
func onEach(ctx context.Context, signals <-chan os.Signal, f func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			f()
		}
	}
}

// hangups are the SIGHUPs from now on, which no longer end the process.
func hangups() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c
}
