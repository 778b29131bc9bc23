package events

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
)

const (
	// redisCheckPause is the pause between two checks of Redis.
	redisCheckPause = time.Minute

	// RedisCheckTimeout bounds a check of Redis. REDIS_TIMEOUT bounds each step.
	RedisCheckTimeout = 10 * time.Second
)

// RedisCheck reports findings about Redis: new ones to the log, and all to metrics, live page and /healthcheck.
type RedisCheck struct {
	*Events
	check  func(context.Context) []redis.Finding
	report func([]redis.Finding) // the metrics

	again  chan struct{}                   // has an element if Redis should be checked before the pause ends
	latest atomic.Pointer[[]redis.Finding] // of the last check; nil before it
	logged []redis.Finding                 // the findings of the last check that have a line in the log
}

// NewRedisCheck returns a RedisCheck of the servers with these roles.
func (e *Events) NewRedisCheck(check func(context.Context) []redis.Finding, roles ...redis.Role) *RedisCheck {
	return &RedisCheck{Events: e, check: check, report: e.Metrics.RedisCheck(roles...), again: make(chan struct{}, 1)}
}

// Run checks Redis now, every minute and after each outage, until ctx is done.
func (c *RedisCheck) Run(ctx context.Context) {
	pause := time.NewTicker(redisCheckPause)
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

// OutageEnded makes Run check Redis at once, because the last findings are about the outage.
func (c *RedisCheck) OutageEnded() {
	select {
	case c.again <- struct{}{}:
	default:
	}
}

// Findings returns the findings of the last check. c can be nil.
func (c *RedisCheck) Findings() []redis.Finding {
	if c == nil || c.latest.Load() == nil {
		return nil
	}
	return *c.latest.Load()
}

func (c *RedisCheck) runOnce(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, RedisCheckTimeout)
	defer cancel()
	found := c.check(limited)
	if ctx.Err() != nil {
		return
	}
	for _, f := range c.Findings() {
		// Nobody knows what has changed in a Redis that does not answer.
		isAway := slices.ContainsFunc(found, func(g redis.Finding) bool { return g.IsUnreachable() && isSameServer(f, g) })
		if isAway && !f.IsUnreachable() {
			found = append(found, f)
		}
	}
	c.report(found)
	c.writeLog(ctx, found)
	c.latest.Store(&found)
	c.Health.Note("redis check", findingNote(found))
}

func isSameServer(f, g redis.Finding) bool { return f.Role == g.Role && f.Address == g.Address }

// findingLevels are the levels of log lines about findings. Other findings have LevelInfo.
var findingLevels = map[redis.Level]slog.Level{redis.LevelProblem: slog.LevelError, redis.LevelWarning: slog.LevelWarn}

// writeLog logs what has changed since the last check. The line about an outage stands for a server without an answer.
func (c *RedisCheck) writeLog(ctx context.Context, found []redis.Finding) {
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
			c.Log.Log(ctx, findingLevels[f.Level], message,
				"check", f.Check, "server", f.Role.String(), "address", f.Address, "finding", f.Text, "advice", f.Advice)
		}
		logged = append(logged, f)
	}
	for _, f := range c.logged {
		if !slices.ContainsFunc(found, func(g redis.Finding) bool { return isSameServer(f, g) && g.Check == f.Check }) {
			c.Log.Info("Redis check passed again", "check", f.Check, "server", f.Role.String(), "address", f.Address)
		}
	}
	c.logged = logged
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
