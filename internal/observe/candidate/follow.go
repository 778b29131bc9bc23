package candidate

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/source"
)

// Follow evaluates the limits of s, and each later version of them, until ctx is done.
func (c *Candidate) Follow(ctx context.Context, s source.Source, log *slog.Logger) {
	_ = s.Run(ctx, func(u source.Update) error {
		if err := errors.Join(u.Problem, u.Outage); err != nil {
			message := "candidate limits rejected; the last good ones are still evaluated"
			if c.store.Load() == nil {
				message = "candidate limits rejected; no candidate is evaluated"
			}
			log.Error(message, "problem", err)
			c.stats.setProblem(err)
			return err
		}
		if u.Limits == nil {
			c.stats.setProblem(nil)
			return nil
		}
		config := descriptors.Compile(u.Limits)
		c.store.Set(config)
		c.stats.reset(time.Now())
		log.Info("candidate limits evaluated", "rules", config.Rules())
		return nil
	})
}
