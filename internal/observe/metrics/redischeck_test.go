package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend/redis"
)

func TestRedisCheckCountsProblemsByCheck(t *testing.T) {
	metrics := New()
	report := metrics.RedisCheck(redis.RoleMain)
	count := func(check string) float64 {
		families, err := metrics.registry.Gather()
		assert.NoError(t, err)
		for _, family := range families {
			for _, metric := range family.Metric {
				if family.GetName() == "rls_redis_check_problems" && strings.Contains(metric.String(), `"`+check+`"`) {
					return metric.GetGauge().GetValue()
				}
			}
		}
		return -1
	}
	assert.Zero(t, count(redis.CheckRights))
	report([]redis.Finding{
		{Check: redis.CheckMemory, Level: redis.LevelWarning},
		{Check: redis.CheckMemory, Level: redis.LevelProblem},
		{Check: redis.CheckPersistence, Level: redis.LevelNote},
		{Role: redis.RolePerSecond, Check: redis.CheckRights, Level: redis.LevelProblem},
	})
	assert.Equal(t, 2.0, count(redis.CheckMemory))
	assert.Zero(t, count(redis.CheckPersistence), "a note is no problem")
	assert.Zero(t, count(redis.CheckRights), "another Redis")
	report(nil)
	assert.Zero(t, count(redis.CheckMemory))
	problems, err := testutil.GatherAndLint(metrics.registry, "rls_redis_check_problems")
	assert.NoError(t, err)
	assert.Empty(t, problems)
}
