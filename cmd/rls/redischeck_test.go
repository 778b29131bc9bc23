package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestRedisCheckLogsOnceAndAgainAfterChange(t *testing.T) {
	var out bytes.Buffer
	var found, reported []redis.Finding
	c := newRedisCheck(func(context.Context) []redis.Finding { return found }, func(all []redis.Finding) { reported = all },
		server.NewHealth(), slog.New(slog.NewTextHandler(&out, nil)))
	rights := redis.Finding{Address: "a:1", Check: redis.CheckRights, Level: redis.LevelProblem, Text: "may not run mget", Advice: "allow mget"}
	changed := rights
	changed.Text = "may not run mget, set"
	note := redis.Finding{Address: "a:1", Check: redis.CheckPersistence, Level: redis.LevelNote, Text: "no append-only file", Advice: "set appendonly yes"}
	away := redis.Finding{Address: "a:1", Check: redis.CheckConnection, Level: redis.LevelProblem, Text: "no answer"}
	for _, step := range []struct {
		name  string
		found []redis.Finding
		lines []string
	}{
		{"nothing", nil, nil},
		{"a problem", []redis.Finding{rights}, []string{`level=ERROR msg="Redis check failed" check=rights server=main address=a:1 finding="may not run mget" advice="allow mget"`}},
		{"the same", []redis.Finding{rights}, nil},
		{"more", []redis.Finding{changed}, []string{`finding="may not run mget, set"`}},
		{"no answer, which the line about the outage says", []redis.Finding{away}, nil},
		{"an answer", []redis.Finding{changed}, nil},
		{"repaired, with a note", []redis.Finding{note}, []string{`level=INFO msg="Redis check passed with a note" check=persistence`, `level=INFO msg="Redis check passed again" check=rights`}},
		{"the note is gone", nil, []string{`level=INFO msg="Redis check passed again" check=persistence`}},
	} {
		out.Reset()
		found = step.found
		c.runOnce(t.Context())
		assert.GreaterOrEqual(t, len(reported), len(step.found))
		assert.Equal(t, reported, c.findings())
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
		c := newRedisCheck(func(context.Context) []redis.Finding { checks.Add(1); return nil }, func([]redis.Finding) {},
			server.NewHealth(), slog.New(slog.DiscardHandler))
		go c.run(t.Context())
		synctest.Wait()
		assert.EqualValues(t, 1, checks.Load())
		time.Sleep(checkPause + time.Second)
		assert.EqualValues(t, 2, checks.Load())
		c.outageEnded()
		synctest.Wait()
		assert.EqualValues(t, 3, checks.Load())
	})
}

func TestServiceSendsOnlyCommandsOfTheDocumentedRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t)
	user := []any{"ACL", "SETUSER", "rls", "on", ">pw", "~p:*", "resetchannels", "&p:rls:*", "-@all"}
	for _, r := range redis.Rights() {
		user = append(user, "+"+r.Command)
	}
	require.NoError(t, c.Do(t.Context(), user...).Err())
	limits := `
domain: shop
descriptors:
- {key: tenant, rate_limit: {unit: day, requests_per_unit: 1000000, algorithm: token_bucket, lease: true}}
- {key: user, rate_limits: [{unit: day, requests_per_unit: 5}, {unit: hour, requests_per_unit: 4, algorithm: sliding_window}]}
`
	for _, r := range startReplicas(t, 2, server, limits, "REDIS_AUTH=rls:pw", "CACHE_KEY_PREFIX=p:") {
		takeTenant := r.tenantCaller()
		for range 200 { // so many that the replica leases permits
			_, err := takeTenant()
			require.NoError(t, err)
		}
		assert.Positive(t, r.usedPermits())
		_, _, _ = rls(t, "hit", "-a", r.grpc, "-d", "shop", "user=ann", "-n", "8")
		_, _, _ = rls(t, "hit", "-a", r.grpc, "-d", "shop", "user=ann", "--hits", "-2")
		r.override("shop|tenant=acme", `{"requests_per_unit": 7}`)
		code, answer := r.admin(http.MethodDelete, "overrides", "shop|tenant=acme", "")
		require.Equal(t, http.StatusOK, code, answer)
		assert.NotContains(t, r.logged(), "NOPERM")
		assert.NotContains(t, r.logged(), "check=rights")
	}
	denials, err := c.Do(t.Context(), "ACL", "LOG").Slice()
	require.NoError(t, err)
	assert.Empty(t, denials)
	assert.Contains(t, c.Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha")
}
