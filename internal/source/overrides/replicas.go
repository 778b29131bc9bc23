package overrides

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

const (
	// reportInterval is the interval of reports. After a change, the next report comes earlier.
	reportInterval = 5 * time.Second

	maxReportAge = time.Minute // an older report does not count, because its replica has probably ended

	// reportsPerPrune is the number of reports after which a replica deletes the reports older than maxReportAge.
	reportsPerPrune = 12
)

// reportScript stores the report of a replica with the time of Redis. KEYS: the hash of replicas. ARGV: the name; the
// report; the time to live of the hash in milliseconds; "prune" to delete the reports that are older than the time to
// live, or "". Reply: OK.
var reportScript = goredis.NewScript(`
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d ', now) .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
if ARGV[4] == 'prune' then
  local reports = redis.call('HGETALL', KEYS[1]) -- names and reports in turn
  for i = 1, #reports, 2 do
    local reported_at = tonumber(string.match(reports[i + 1], '^%d+') or '')
    if not reported_at or now - reported_at > ARGV[3] / 1000 then
      redis.call('HDEL', KEYS[1], reports[i])
    end
  end
end
return redis.status_reply('OK')
`)

// reportReplica reports this replica until ctx is done, and then deletes the report.
func (s *Store) reportReplica(ctx context.Context) {
	if s.options.Report == nil {
		return
	}
	name := ""
	for n := 0; ; n++ {
		r := s.options.Report()
		r.Version, name = s.Version(), r.Name
		text, _ := json.Marshal(r)
		prune := ""
		if n%reportsPerPrune == reportsPerPrune-1 {
			prune = "prune"
		}
		err := reportScript.Run(ctx, s.options.Client, []string{s.replicas}, r.Name, text, maxReportAge.Milliseconds(), prune).Err()
		if err != nil && ctx.Err() == nil && n == 0 {
			s.options.Log.Warn("replica not reported; rls limits show --replicas does not show it", "error", err)
		}
		if !s.waitForReport(ctx) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.options.Client.HDel(ctx, s.replicas, name).Err() // after a failure, another replica deletes the report later
}

// waitForReport waits until the next report is due, or returns false when ctx is done.
func (s *Store) waitForReport(ctx context.Context) bool {
	const minPause = 200 * time.Millisecond
	if !wait.Sleep(ctx, minPause) {
		return false
	}
	timer := time.NewTimer(time.Duration(float64(reportInterval) * (0.8 + 0.2*rand.Float64())))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-s.reportRequests:
	}
	return true
}

func (s *Store) requestReport() { wait.Signal(s.reportRequests) }

// Replicas returns the last reports of all replicas, sorted by name.
func (s *Store) Replicas(ctx context.Context) ([]changes.Replica, error) {
	now, err := s.options.Client.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("read the reports of replicas: %w", err)
	}
	reports, err := s.options.Client.HGetAll(ctx, s.replicas).Result()
	if err != nil {
		return nil, fmt.Errorf("read the reports of replicas: %w", err)
	}
	var replicas []changes.Replica
	for _, value := range reports {
		seconds, text, _ := strings.Cut(value, " ")
		reportedAt, err := strconv.ParseInt(seconds, 10, 64)
		var r changes.Replica
		if err != nil || json.Unmarshal([]byte(text), &r) != nil {
			continue // another program wrote this value
		}
		if r.SeenAgo = max(now.Truncate(time.Second).Sub(time.Unix(reportedAt, 0)), 0); r.SeenAgo <= maxReportAge {
			replicas = append(replicas, r)
		}
	}
	slices.SortFunc(replicas, func(a, b changes.Replica) int { return strings.Compare(a.Name, b.Name) })
	return replicas, nil
}
