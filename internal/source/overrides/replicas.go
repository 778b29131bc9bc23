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

	// maxReportAge is the age of the oldest report that is kept. The replica of an older report has probably ended.
	maxReportAge = time.Minute

	maxReports     = 500  // bounds the reports that a replica reads
	maxReportBytes = 1024 // a replica ignores longer reports
)

// reportScript stores the report of a replica with the time of Redis, deletes old reports, and returns all other reports.
// KEYS: the hash of reports. ARGV: the name of the replica, or "" to store no report; the report; the maximum age of a
// report in milliseconds; the maximum number of reports in the reply; the maximum length of a report. Reply: the time in
// seconds; the number of reports that the reply leaves out; the reports, each with its time before it.
var reportScript = goredis.NewScript(`
local now = tonumber(redis.call('TIME')[1])
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%d ', now) .. ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local reply, left_out = {}, 0
local reports = redis.call('HGETALL', KEYS[1]) -- each name is followed by its report
for i = 1, #reports, 2 do
  local report = reports[i + 1]
  local reported_at = tonumber(string.match(report, '^%d+') or '')
  if not reported_at or now - reported_at > ARGV[3] / 1000 then
    redis.call('HDEL', KEYS[1], reports[i])
  elseif #reply < tonumber(ARGV[4]) and #report <= tonumber(ARGV[5]) then
    table.insert(reply, report)
  else
    left_out = left_out + 1
  end
end
return {now, left_out, reply}
`)

// reportReplica reports this replica until ctx is done, and then deletes the report. After each report, LastReports
// returns the reports of all replicas.
func (s *Store) reportReplica(ctx context.Context) {
	if s.options.Report == nil {
		return
	}
	name := ""
	for isFirst := true; ; isFirst = false {
		r := s.options.Report()
		r.Version, name = s.Version(), r.Name
		text, _ := json.Marshal(r)
		reports, err := s.exchangeReports(ctx, r.Name, text)
		if err != nil && ctx.Err() == nil {
			if isFirst {
				s.options.Log.Warn("replica not reported; rls limits show --replicas and the live pages of other replicas do not show it", "error", err)
			}
			reports = s.LastReports()
			if reports.Err == nil {
				reports.FailedAt = time.Now()
			}
			reports.Err = err
		}
		s.lastReports.Store(&reports)
		if !s.waitForReport(ctx) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.options.Client.HDel(ctx, s.reportsHash, name).Err() // after a failure, another replica deletes the report later
}

// waitForReport waits until the next report is due, or returns false when ctx is done.
func (s *Store) waitForReport(ctx context.Context) bool {
	const minPause = 200 * time.Millisecond
	if !wait.Sleep(ctx, minPause) {
		return false
	}
	// A random interval keeps replicas that start together from reporting together.
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

func (s *Store) requestReplicaReport() { wait.Signal(s.reportRequests) }

// LastReports returns the reports that this replica read when it last reported itself. It sends nothing to Redis.
func (s *Store) LastReports() changes.Reports {
	if reports := s.lastReports.Load(); reports != nil {
		return *reports
	}
	return changes.Reports{}
}

// Replicas reads the last reports of all replicas, sorted by name, but at most maxReports.
func (s *Store) Replicas(ctx context.Context) ([]changes.Replica, error) {
	reports, err := s.exchangeReports(ctx, "", nil)
	return reports.Replicas, err
}

// exchangeReports stores the report of a replica, unless name is empty, and reads the reports of all replicas.
func (s *Store) exchangeReports(ctx context.Context, name string, report []byte) (changes.Reports, error) {
	reply, err := reportScript.Run(ctx, s.options.Client, []string{s.reportsHash}, name, report, maxReportAge.Milliseconds(), maxReports, maxReportBytes).Slice()
	if err != nil {
		return changes.Reports{}, fmt.Errorf("read the reports of replicas from Redis: %w", err)
	}
	now, omittedCount, texts := reply[0].(int64), reply[1].(int64), reply[2].([]any)
	reports := changes.Reports{ReadAt: time.Now(), More: int(omittedCount)}
	for _, value := range texts {
		seconds, text, _ := strings.Cut(value.(string), " ")
		reportedAt, err := strconv.ParseInt(seconds, 10, 64)
		var r changes.Replica
		if err != nil || json.Unmarshal([]byte(text), &r) != nil {
			continue // another program wrote this value
		}
		r.TimeSinceReport = time.Duration(max(now-reportedAt, 0)) * time.Second
		reports.Replicas = append(reports.Replicas, r)
	}
	slices.SortFunc(reports.Replicas, func(a, b changes.Replica) int { return strings.Compare(a.Name, b.Name) })
	return reports, nil
}
