package metrics

import "github.com/seed-81f232ab/rls/backend/redis"

// RedisCheck registers the metric of the checks of Redis. roles are the Redis servers in use. The returned function sets
// the metric to the findings of a check.
func (m *Metrics) RedisCheck(roles ...redis.Role) func([]redis.Finding) {
	problems := m.newGauges("rls_redis_check_problems", "Problems and warnings that the last check of Redis found. The log has each finding with advice.", "server", "check")
	report := func(findings []redis.Finding) {
		for _, role := range roles {
			problemCounts := map[string]int{}
			for _, f := range findings {
				if f.Role == role && f.Level != redis.LevelNote {
					problemCounts[f.Check]++
				}
			}
			for _, check := range redis.Checks {
				problems.WithLabelValues(role.String(), check).Set(float64(problemCounts[check]))
			}
		}
	}
	report(nil)
	return report
}
