package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/server"
)

const (
	// checkPause is the pause between two checks of Redis.
	checkPause = time.Minute

	// checkTimeout bounds a check of Redis. REDIS_TIMEOUT bounds each step.
	checkTimeout = 10 * time.Second
)

// redisCheck reports the findings about Redis to the log, the metrics, the live page and
// /healthcheck. It logs a finding once, and again when it changes.
type redisCheck struct {
	check  func(context.Context) []redis.Finding
	report func([]redis.Finding) // the metrics
	health *server.Health
	log    *slog.Logger

	again  chan struct{}                   // has an element if Redis should be checked before the pause ends
	latest atomic.Pointer[[]redis.Finding] // of the last check; nil before it
	logged []redis.Finding                 // those of the last check that have a line in the log
}

func newRedisCheck(check func(context.Context) []redis.Finding, report func([]redis.Finding), health *server.Health, log *slog.Logger) *redisCheck {
	return &redisCheck{check: check, report: report, health: health, log: log, again: make(chan struct{}, 1)}
}

// run checks Redis now, every minute and after each outage, until ctx is done.
func (c *redisCheck) run(ctx context.Context) {
	pause := time.NewTicker(checkPause)
	defer pause.Stop()
	for {
		c.runOnce(ctx)
		select {
		case <-pause.C:
		case <-c.again:
		case <-ctx.Done():
			return
		}
	}
}

// outageEnded makes run check Redis at once, because the last findings are about the outage.
func (c *redisCheck) outageEnded() {
	select {
	case c.again <- struct{}{}:
	default:
	}
}

// findings returns the findings of the last check. c can be nil.
func (c *redisCheck) findings() []redis.Finding {
	if c == nil || c.latest.Load() == nil {
		return nil
	}
	return *c.latest.Load()
}

func (c *redisCheck) runOnce(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found, previous := c.check(limited), c.findings()
	if ctx.Err() != nil {
		return
	}
	for _, f := range previous {
		// Nobody knows what has changed in a Redis that does not answer.
		if isUnreachable(found, f) && !f.IsUnreachable() {
			found = append(found, f)
		}
	}
	c.report(found)
	c.writeLog(ctx, found)
	c.latest.Store(&found)
	c.health.Note("redis check", findingNote(found))
}

// writeLog logs what has changed since the last check. A server that does not answer has no line,
// because the line about the outage has the cause.
func (c *redisCheck) writeLog(ctx context.Context, found []redis.Finding) {
	var logged []redis.Finding
	for _, f := range found {
		if f.IsUnreachable() {
			continue
		}
		if !slices.Contains(c.logged, f) {
			message := "Redis check failed"
			if f.Level == redis.LevelNote {
				message = "Redis check passed with a note"
			}
			c.log.Log(ctx, findingLevel(f), message, findingAttrs(f)...)
		}
		logged = append(logged, f)
	}
	for _, f := range c.logged {
		if !slices.ContainsFunc(found, func(g redis.Finding) bool { return g.Role == f.Role && g.Address == f.Address && g.Check == f.Check }) {
			c.log.Info("Redis check passed again", "check", f.Check, "server", f.Role.String(), "address", f.Address)
		}
	}
	c.logged = logged
}

// isUnreachable reports whether the server of f did not answer in the check that found all.
func isUnreachable(all []redis.Finding, f redis.Finding) bool {
	return slices.ContainsFunc(all, func(g redis.Finding) bool {
		return g.IsUnreachable() && g.Role == f.Role && g.Address == f.Address
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
