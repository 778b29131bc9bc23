package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/polltest"
	"github.com/seed-81f232ab/rls/internal/redistest"
)

// distantRedis returns the address of a Redis that is 36 ms away: 18 ms in each direction.
func distantRedis(t *testing.T) (*proxy, string) {
	s := redistest.Start(t)
	p := startProxy(t, "127.0.0.1:0", s.Addr)
	p.addToxic("latency", 1, `"latency": 18`)
	return p, p.Listen
}

// shareByRedis returns the share of n calls that Redis decides. The calls come from 8 callers at
// once.
func shareByRedis(r *replica, n int) float64 {
	stop := r.startCallers(8, 3*time.Millisecond)
	count := func() (byRedis, all int64) {
		for reason := range r.byReason {
			all += r.byReason[reason].Load()
		}
		return r.byReason[backend.ReasonNone].Load(), all
	}
	byRedisBefore, allBefore := count()
	for {
		time.Sleep(10 * time.Millisecond)
		if byRedis, all := count(); all-allBefore >= int64(n) {
			stop()
			return float64(byRedis-byRedisBefore) / float64(all-allBefore)
		}
	}
}

func TestDistantRedisDecidesWithAutoTimeout(t *testing.T) {
	p, address := distantRedis(t)
	r, client := startReplica(t, redis.Options{Main: single(address), AutoTimeout: true})
	require.Equal(t, budget, client.Timeout(), "before the first measurement")
	polltest.Until(t, 10*time.Second, func() bool { r.call(); return client.Timeout() > 2*budget })
	assert.GreaterOrEqual(t, client.RoundTrip(), 36*time.Millisecond)
	assert.Greater(t, shareByRedis(r, 200), 0.8)
	for _, f := range client.Check(context.Background()) {
		assert.NotEqual(t, redis.CheckTimeout, f.Check)
	}

	p.removeToxics()
	polltest.Until(t, 60*time.Second, func() bool { r.call(); return client.Timeout() == budget })
}

func TestCheckSaysThatTheTimeoutIsTooShort(t *testing.T) {
	_, address := distantRedis(t)
	_, client := startReplica(t, redis.Options{Main: single(address), Timeout: budget})
	findings := map[string]redis.Finding{}
	for _, f := range client.Check(context.Background()) {
		findings[f.Check] = f
	}
	f := findings[redis.CheckTimeout]
	assert.Regexp(t, `^round trip \d.*ms, budget 50ms: too small`, f.Text)
	assert.Regexp(t, `^set REDIS_TIMEOUT to \d+0ms or more`, f.Advice)
	assert.NotContains(t, findings, redis.CheckConnection)
}
