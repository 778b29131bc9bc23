package candidate

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/source"
)

// Follow evaluates the limits of s, and each new version of these limits, until ctx is done.
func (c *Candidate) Follow(ctx context.Context, s source.Source, log *slog.Logger) {
	_ = s.Run(ctx, func(update source.Update) error {
		err := errors.Join(update.Problem, update.Outage)
		c.stats.setProblem(err)
		switch {
		case err != nil && c.Limits.Load() == nil:
			log.Error("candidate limits rejected; no candidate is evaluated", "problem", err)
			return err
		case err != nil:
			log.Error("candidate limits rejected; the last good candidate is still evaluated", "problem", err)
			return err
		case update.Limits == nil:
			return nil
		}
		config := descriptors.Compile(update.Limits)
		c.Limits.Set(config)
		c.stats.reset(time.Now())
		log.Info("candidate limits evaluated", "rules", config.RuleCount())
		return nil
	})
}
