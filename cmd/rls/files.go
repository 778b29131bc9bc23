package main

import (
	"context"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	filesource "github.com/seed-81f232ab/rls/source/file"
)

// limitsFiles keeps the limits files of the settings in force.
type limitsFiles struct {
	*limits
	options descriptors.Options
	source  *filesource.Source
	digests filesource.Digests // of the files in force
	noted   map[string]bool    // warnings about the files read last
}

func newLimitsFiles(s *env.Settings, l *limits) *limitsFiles {
	place := filesource.Place{Root: s.LimitsPath, IgnoreDotFiles: s.RuntimeIgnoreDotFiles}
	if s.LimitsPath == "" {
		place = filesource.Place{
			Root:           s.RuntimeRoot,
			Subdirectory:   s.RuntimeSubdirectory,
			AppDirectory:   s.RuntimeAppDirectory,
			WatchRoot:      s.RuntimeWatchRoot,
			IgnoreDotFiles: s.RuntimeIgnoreDotFiles,
		}
	}
	return &limitsFiles{
		limits:  l,
		options: descriptors.Options{MergeDomains: s.MergeDomainConfig},
		source:  filesource.New(place, s.SourcePollInterval),
	}
}

// follow keeps the files in force until ctx is done. It calls first with the outcome of
// the first read. SIGHUP reads the files at once.
func (f *limitsFiles) follow(ctx context.Context, hangups <-chan os.Signal, first func(error)) {
	go onEach(ctx, hangups, f.source.Reload)
	started := false
	_ = f.source.Run(ctx, func(n *filesource.Snapshot) {
		err := f.load(n)
		switch {
		case !started:
			started = true
			first(err)
		case err != nil:
			f.refuse(err, n.Requested)
		}
	})
}

// load compiles what was read and puts it in force.
func (f *limitsFiles) load(r *filesource.Snapshot) (err error) {
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
