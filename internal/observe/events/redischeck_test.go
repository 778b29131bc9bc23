package events

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend/redis"
)

func TestRedisCheckLogsOnceAndAgainAfterChange(t *testing.T) {
	var out bytes.Buffer
	var findings, reportedFindings []redis.Finding
	check := newEvents(&out).NewRedisCheck(func(context.Context) []redis.Finding { return findings })
	check.report = func(f []redis.Finding) { reportedFindings = f }
	missingRight := redis.Finding{Address: "a:1", Check: redis.CheckRights, Level: redis.LevelProblem, Text: "may not run mget", Advice: "allow mget"}
	twoMissingRights := missingRight
	twoMissingRights.Text = "may not run mget, set"
	note := redis.Finding{Address: "a:1", Check: redis.CheckPersistence, Level: redis.LevelNote, Text: "no append-only file", Advice: "set appendonly yes"}
	noAnswer := redis.Finding{Address: "a:1", Check: redis.CheckConnection, Level: redis.LevelProblem, Text: "no answer"}
	for _, step := range []struct {
		name     string
		findings []redis.Finding
		lines    []string
	}{
		{"no findings", nil, nil},
		{"a problem", []redis.Finding{missingRight}, []string{`level=ERROR msg="Redis check failed" check=rights server=main address=a:1 finding="may not run mget" advice="allow mget"`}},
		{"the same problem", []redis.Finding{missingRight}, nil},
		{"the problem has grown", []redis.Finding{twoMissingRights}, []string{`finding="may not run mget, set"`}},
		{"no answer: the outage has its own line", []redis.Finding{noAnswer}, nil},
		{"an answer with the same problem", []redis.Finding{twoMissingRights}, nil},
		{"the problem is repaired, and there is a note", []redis.Finding{note}, []string{`level=INFO msg="Redis check passed with a note" check=persistence`, `level=INFO msg="Redis check passed again" check=rights`}},
		{"the note is gone", nil, []string{`level=INFO msg="Redis check passed again" check=persistence`}},
	} {
		out.Reset()
		findings = step.findings
		check.runOnce(t.Context())
		assert.GreaterOrEqual(t, len(reportedFindings), len(step.findings))
		assert.Equal(t, reportedFindings, check.Findings())
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(step.lines) == 0 {
			assert.Empty(t, out.String(), step.name)
			continue
		}
		if assert.Len(t, lines, len(step.lines), step.name) {
			for i, line := range step.lines {
				assert.Contains(t, lines[i], line, step.name)
			}
		}
	}
}

func TestRedisIsCheckedAtStartEachMinuteAndAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checks atomic.Int64
		check := newEvents(io.Discard).NewRedisCheck(func(context.Context) []redis.Finding { checks.Add(1); return nil })
		go check.Run(t.Context())
		synctest.Wait()
		assert.EqualValues(t, 1, checks.Load())
		time.Sleep(redisCheckPause + time.Second)
		assert.EqualValues(t, 2, checks.Load())
		check.OutageEnded()
		synctest.Wait()
		assert.EqualValues(t, 3, checks.Load())
	})
}
