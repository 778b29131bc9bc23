package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatHappensIsCounted(t *testing.T) {
	m := New()
	m.WithRedis()
	m.Overrides(3, 2)
	m.LimitsProblems([]string{"a.yaml:1:2: wrong\xff", "gone"})
	m.LimitsProblems([]string{"a.yaml:1:2: wrong\xff"})
	m.LimitsLoaded()
	m.LimitsRefused()
	m.LimitsRefused()
	m.RedisDown()
	m.RedisBack(1500*time.Millisecond, 40, 30)
	m.RedisDown()
	assert.NoError(t, testutil.GatherAndCompare(m.registry, strings.NewReader(`
# HELP ratelimit_service_config_load_error Sets of limits refused.
# TYPE ratelimit_service_config_load_error counter
ratelimit_service_config_load_error 2
# HELP ratelimit_service_config_load_success Sets of limits put in force.
# TYPE ratelimit_service_config_load_success counter
ratelimit_service_config_load_success 1
# HELP rls_limits_problem 1 for each of the first problems that keep newer limits or overrides from being in force.
# TYPE rls_limits_problem gauge
rls_limits_problem{problem="a.yaml:1:2: wrong?"} 1
# HELP rls_overrides Overrides of limits that are in force, and that are refused.
# TYPE rls_overrides gauge
rls_overrides{state="in_force"} 3
rls_overrides{state="refused"} 2
# HELP rls_redis_away_seconds_total Time that Redis was away, counted when it is back.
# TYPE rls_redis_away_seconds_total counter
rls_redis_away_seconds_total 1.5
# HELP rls_redis_carried_hits_total Hits charged to Redis when it was back.
# TYPE rls_redis_carried_hits_total counter
rls_redis_carried_hits_total 30
# HELP rls_redis_fallback_hits_total Hits decided without Redis, counted when it is back.
# TYPE rls_redis_fallback_hits_total counter
rls_redis_fallback_hits_total 40
# HELP rls_redis_state_changes_total Times that Redis went (down) and came back (up).
# TYPE rls_redis_state_changes_total counter
rls_redis_state_changes_total{state="down"} 2
rls_redis_state_changes_total{state="up"} 1
# HELP rls_redis_up 1 while all of Redis is asked, 0 while part of it or all is left alone.
# TYPE rls_redis_up gauge
rls_redis_up 0
`), "ratelimit_service_config_load_error", "ratelimit_service_config_load_success", "rls_limits_problem", "rls_overrides", "rls_redis_away_seconds_total", "rls_redis_carried_hits_total",
		"rls_redis_fallback_hits_total", "rls_redis_state_changes_total", "rls_redis_up"))
	problems, err := testutil.GatherAndLint(m.registry)
	require.NoError(t, err)
	for _, p := range problems {
		assert.Contains(t, p.Metric, "config_load", "only the incumbent's names break the rules: %s", p.Text)
	}
}

func TestWhatIsNotUsedIsNotSpokenOf(t *testing.T) {
	n, err := testutil.GatherAndCount(New().registry, "rls_redis_up", "rls_redis_state_changes_total", "rls_xds_up")
	require.NoError(t, err)
	assert.Zero(t, n)
}

func TestXDS(t *testing.T) {
	m := New()
	m.WithXDS()
	assert.Zero(t, testutil.ToFloat64(m.xdsUp))
	m.XDS(true)
	assert.EqualValues(t, 1, testutil.ToFloat64(m.xdsUp))
	m.XDS(false)
	assert.Zero(t, testutil.ToFloat64(m.xdsUp))
}
