package main

import (
	"errors"
	"log/slog"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/source"
)

// loadLimits reads and compiles the limits and puts them in force, or tells all
// that is wrong with them.
func loadLimits(s *settings, store *descriptors.Store, log *slog.Logger) error {
	files, skipped, err := limitsFiles(s)
	for _, f := range skipped {
		log.Warn("skipped beside the limits", "file", f.Path, "reason", f.Reason)
	}
	if err != nil {
		return err
	}
	cfg, err := descriptors.Compile(files, descriptors.Options{MergeDomains: s.MergeDomainConfig})
	if err != nil {
		return err
	}
	for _, p := range cfg.Warnings {
		log.Warn("limits file", "problem", p.String())
	}
	store.Set(cfg)
	log.Info("limits in force", "files", len(files), "domains", len(cfg.Domains()))
	return nil
}

// limitsFiles reads the files that the settings point to.
func limitsFiles(s *settings) ([]descriptors.File, []source.Skipped, error) {
	o := source.Options{IgnoreDotFiles: s.RuntimeIgnoreDotFiles}
	if s.LimitsPath != "" {
		return source.Files(s.LimitsPath, o)
	}
	files, skipped, err := source.Runtime{
		Root:         s.RuntimeRoot,
		Subdirectory: s.RuntimeSubdirectory,
		AppDirectory: s.RuntimeAppDirectory,
		WatchRoot:    s.RuntimeWatchRoot,
	}.Files(o)
	if err != nil {
		err = errors.Join(err, errors.New("LIMITS_PATH or --limits names another place"))
	}
	return files, skipped, err
}
