package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/wait"
	"github.com/seed-81f232ab/rls/server"
)

const (
	// checkPause is the pause between two checks of Redis.
	checkPause = time.Minute

	// checkTimeout bounds a check of Redis. REDIS_TIMEOUT bounds each step.
	checkTimeout = 10 * time.Second
)

// redisCheck reports the findings about Redis to the log, the metrics and /healthcheck. It logs a
// finding once, and again when it changes.
type redisCheck struct {
	check  func(context.Context) []redis.Finding
	report func([]redis.Finding) // the metrics
	health *server.Health
	log    *slog.Logger

	known []redis.Finding // of the last check
}

// run checks Redis now and every minute, until ctx is done.
func (c *redisCheck) run(ctx context.Context) {
	for {
		c.runOnce(ctx)
		if !wait.Sleep(ctx, checkPause) {
			return
		}
	}
}

func (c *redisCheck) runOnce(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found := c.check(limited)
	if ctx.Err() != nil {
		return
	}
	for _, f := range c.known {
		// Nobody knows what has changed in a Redis that does not answer.
		if isUnreachable(found, f) && f.Check != redis.CheckConnection {
			found = append(found, f)
		}
	}
	c.report(found)
	for _, f := range found {
		if !slices.Contains(c.known, f) {
			c.log.Log(ctx, findingLevel(f), "Redis check failed", findingAttrs(f)...)
		}
	}
	for _, f := range c.known {
		if !slices.Contains(found, f) && !slices.ContainsFunc(found, func(g redis.Finding) bool { return g.Role == f.Role && g.Address == f.Address && g.Check == f.Check }) {
			c.log.Info("Redis check passed again", "check", f.Check, "server", f.Role.String(), "address", f.Address)
		}
	}
	c.known = found
	c.health.Note("redis check", findingNote(found))
}

// isUnreachable reports whether the server of f did not answer in the check that found all.
func isUnreachable(all []redis.Finding, f redis.Finding) bool {
	return slices.ContainsFunc(all, func(g redis.Finding) bool {
		return g.Check == redis.CheckConnection && g.Role == f.Role && g.Address == f.Address
	})
}

// findingLevel returns the level of the log line of f.
func findingLevel(f redis.Finding) slog.Level {
	switch f.Level {
	case redis.LevelProblem:
		return slog.LevelError
	case redis.LevelWarning:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

func findingAttrs(f redis.Finding) []any {
	return []any{"check", f.Check, "server", f.Role.String(), "address", f.Address, "finding", f.Text, "advice", f.Advice}
}

// findingNote returns the note of /healthcheck, or "" without problems and warnings. Anyone can
// read /healthcheck, so only the log has addresses and users.
func findingNote(all []redis.Finding) string {
	var failed []string
	for _, f := range all {
		if f.Level != redis.LevelNote && !slices.Contains(failed, f.Check) {
			failed = append(failed, f.Check)
		}
	}
	if len(failed) == 0 {
		return ""
	}
	return "failed: " + strings.Join(failed, ", ") + "; the log has advice"
}
