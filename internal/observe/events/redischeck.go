package events

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/base/wait"
)

const (
	redisCheckPause = time.Minute

	// RedisCheckTimeout bounds a whole check of Redis. REDIS_TIMEOUT bounds each step of the check.
	RedisCheckTimeout = 10 * time.Second
)

// RedisCheck checks Redis and reports the findings. The log gets the new findings. The metrics, the live page and
// /healthcheck get all findings.
type RedisCheck struct {
	*Events
	check  func(context.Context) []redis.Finding
	report func([]redis.Finding) // sets the metrics

	requests       chan struct{}                   // has an element if Run should check Redis before the pause ends
	findings       atomic.Pointer[[]redis.Finding] // the findings of the last check; nil before the first check
	loggedFindings []redis.Finding                 // the findings of the last check that have a line in the log
}

// NewRedisCheck returns a RedisCheck. roles are the Redis servers in use.
func (e *Events) NewRedisCheck(check func(context.Context) []redis.Finding, roles ...redis.Role) *RedisCheck {
	return &RedisCheck{Events: e, check: check, report: e.Metrics.RedisCheck(roles...), requests: make(chan struct{}, 1)}
}

// Run checks Redis now, every minute and after each outage, until ctx is done.
func (c *RedisCheck) Run(ctx context.Context) {
	ticker := time.NewTicker(redisCheckPause)
	defer ticker.Stop()
	for {
		c.runOnce(ctx)
		select {
		case <-ticker.C:
		case <-c.requests:
		case <-ctx.Done():
			return
		}
	}
}

// OutageEnded makes Run check Redis at once, because the last findings describe the outage.
func (c *RedisCheck) OutageEnded() { wait.Signal(c.requests) }

// Findings returns the findings of the last check. c can be nil.
func (c *RedisCheck) Findings() []redis.Finding {
	if c == nil || c.findings.Load() == nil {
		return nil
	}
	return *c.findings.Load()
}

func (c *RedisCheck) runOnce(ctx context.Context) {
	checkCtx, cancel := context.WithTimeout(ctx, RedisCheckTimeout)
	defer cancel()
	findings := c.check(checkCtx)
	if ctx.Err() != nil {
		return
	}
	for _, finding := range c.Findings() {
		// If a server does not answer, its earlier findings stay, because the check could not repeat them.
		isUnreachable := slices.ContainsFunc(findings, func(newFinding redis.Finding) bool {
			return newFinding.IsUnreachable() && isSameServer(finding, newFinding)
		})
		if isUnreachable && !finding.IsUnreachable() {
			findings = append(findings, finding)
		}
	}
	c.report(findings)
	c.writeLog(ctx, findings)
	c.findings.Store(&findings)
	c.Health.Note("redis check", findingNote(findings))
}

func isSameServer(finding, otherFinding redis.Finding) bool {
	return finding.Role == otherFinding.Role && finding.Address == otherFinding.Address
}

// findingLevels are the levels of log lines about findings. Other findings have LevelInfo.
var findingLevels = map[redis.Level]slog.Level{redis.LevelProblem: slog.LevelError, redis.LevelWarning: slog.LevelWarn}

// writeLog logs the new findings and the repaired findings. It does not log that a server is unreachable, because the
// log has a line about the outage.
func (c *RedisCheck) writeLog(ctx context.Context, findings []redis.Finding) {
	var loggedFindings []redis.Finding
	for _, finding := range findings {
		if finding.IsUnreachable() {
			continue
		}
		if !slices.Contains(c.loggedFindings, finding) {
			message := "Redis check failed"
			if finding.Level == redis.LevelNote {
				message = "Redis check passed with a note"
			}
			c.Log.Log(ctx, findingLevels[finding.Level], message,
				"check", finding.Check, "server", finding.Role.String(), "address", finding.Address, "finding", finding.Text, "advice", finding.Advice)
		}
		loggedFindings = append(loggedFindings, finding)
	}
	for _, finding := range c.loggedFindings {
		if !slices.ContainsFunc(findings, func(newFinding redis.Finding) bool {
			return isSameServer(finding, newFinding) && newFinding.Check == finding.Check && (newFinding.Level != redis.LevelNote || finding.Level == redis.LevelNote)
		}) {
			c.Log.Info("Redis check passed again", "check", finding.Check, "server", finding.Role.String(), "address", finding.Address)
		}
	}
	c.loggedFindings = loggedFindings
}

// findingNote returns the note of /healthcheck, or "" if there is no problem and no warning. Anyone can read
// /healthcheck, so the note has no addresses and no users.
func findingNote(findings []redis.Finding) string {
	var checks []string
	for _, f := range findings {
		if f.Level != redis.LevelNote && !slices.Contains(checks, f.Check) {
			checks = append(checks, f.Check)
		}
	}
	if len(checks) == 0 {
		return ""
	}
	return "failed: " + strings.Join(checks, ", ") + "; the log has advice"
}
