// Package quota implements Envoy's RateLimitQuotaService. Each Envoy reports its requests in a stream and gets a share of
// a limit, which the Envoy enforces without a call per request. Package limit/quota divides the limits.
//
//   - stream: a stream of one Envoy; it has buckets (stream.go);
//   - bucket: the requests with one bucket id in one Envoy (bucket.go);
//   - group: all buckets of this replica that share a counter (group.go).
//
// Each tick updates the groups with new reports. Between ticks, streams only collect reports.
package quota

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"golang.org/x/time/rate"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

// Options are the settings of a Service.
type Options struct {
	Limits *descriptors.Store
	Store  backend.QuotaStore

	// ShadowMode is the setting SHADOW_MODE: all requests pass.
	ShadowMode bool

	// FailureMode and FallbackRatio say what happens while the Store fails. Limits can have their own values.
	FailureMode   limit.FailureMode
	FallbackRatio float64

	MaxBuckets int // bounds the buckets of a stream, and the memory of all streams
	MaxEntries int // bounds the entries of a bucket id; 0 means no bound

	// CheckDomain returns an error if the caller may not use a domain. It can be nil.
	CheckDomain func(ctx context.Context, domain string) error

	Log *slog.Logger
}

// Service is Envoy's RateLimitQuotaService.
type Service struct {
	rlqsv3.UnimplementedRateLimitQuotaServiceServer
	options  Options
	hashSeed maphash.Seed // the seed of group.hash

	failureLog, ignoredLog *rate.Limiter // bound the log lines to one a minute

	workers sync.WaitGroup // the goroutines of streams

	mu             sync.Mutex          // guards the fields below, and the buckets and groups
	config         *descriptors.Config // the limits with which all buckets were evaluated
	streams        map[*stream]bool
	clients        map[string]*client // the key is the IP address
	memory         int64              // bytes of all clients
	departures     []departure        // buckets whose streams have ended, while their shares are still reserved
	groups         map[string]*group  // the key is the name of the counter
	dueGroups      []*group           // the groups that the next tick updates
	updatedTurn    int64              // the largest turn of an updated group; groups with smaller turns are updated first
	lastUpdatedAt  time.Time          // the last successful update of any group
	nextIdleSearch time.Time          // the next search for idle buckets
	counts         Counts
}

// Counts are the counts since the start.
type Counts struct {
	Updates        uint64        // updates of groups that the store took in time
	Failures       uint64        // updates that the store did not take in time
	Conflicts      uint64        // updates that started again, because another replica was faster
	IgnoredReports uint64        // reports without a valid bucket id, or beyond the bounds of MaxBuckets and MaxHolders
	BlockedStreams uint64        // streams that were closed, because they did not read or used too much memory
	AnswerTime     time.Duration // for each update, the time from its first report to its answer; the sum of these times
}

const (
	tickInterval = 250 * time.Millisecond
	maxTickTime  = tickInterval / 4 // after this time, the other groups wait for the next tick

	// delay is the longest time of a grant on its way, plus that of a report on its way (quota.Limit.Delay). maxUpdateTime bounds the time from the collection of the reports to the
	// answer, and maxReportAge the time from a report to the collection. A grant can wait for the end of one update, and the
	// next report for the start of another update. Two updates and maxReportAge need 7/8 of delay, so the network has 1/8.
	delay         = time.Second
	maxUpdateTime = delay / 4
	maxReportAge  = delay * 3 / 8

	idleTime           = 10 * time.Minute // a bucket without a request for this time is abandoned
	idleSearchInterval = 10 * time.Second // the time between two searches for idle buckets

	maxGroupsInUpdate = 256
)

// New returns a Service. The caller must call Run.
func New(o Options) *Service {
	everyMinute := func() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Minute), 1) }
	return &Service{
		options: o, streams: map[*stream]bool{}, clients: map[string]*client{}, groups: map[string]*group{}, lastUpdatedAt: time.Now(),
		hashSeed: maphash.MakeSeed(), failureLog: everyMinute(), ignoredLog: everyMinute(),
	}
}

// Run updates the groups until ctx is done. Then it waits for the goroutines of the streams, so the server must have ended
// all streams.
func (s *Service) Run(ctx context.Context) {
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			s.workers.Wait()
			return
		case <-ticker.C:
			s.tick(ctx)
		}
	}
}

func (s *Service) tick(ctx context.Context) {
	s.mu.Lock()
	now := time.Now()
	s.evaluateAgainIfLimitsChanged()
	s.abandonIdleBuckets(now)
	s.freeExpiredShares(now)
	s.forgetDepartures(now)
	due := s.dueGroups
	s.dueGroups = nil
	slices.SortStableFunc(due, func(a, b *group) int { return cmp.Compare(a.turn, b.turn) })
	s.mu.Unlock()
	hasFailed := false
	for len(due) > 0 && ctx.Err() == nil && (hasFailed || time.Since(now) < maxTickTime) {
		n := min(len(due), maxGroupsInUpdate)
		hasFailed = !s.update(ctx, due[:n], hasFailed)
		due = due[n:]
	}
	s.mu.Lock()
	s.dueGroups = append(due, s.dueGroups...)
	s.mu.Unlock()
}

func (s *Service) evaluateAgainIfLimitsChanged() {
	config := s.options.Limits.Load()
	if config == s.config {
		return
	}
	s.config = config
	for st := range s.streams {
		for _, b := range st.buckets {
			s.evaluate(b)
		}
	}
}

// freeExpiredShares updates the groups that have an expired holder. Without an update, its share would stay unused until the
// next report.
func (s *Service) freeExpiredShares(now time.Time) {
	for _, g := range s.groups {
		if !g.expiry.IsZero() && now.After(g.expiry) {
			g.expiry = time.Time{}
			s.markDue(g)
		}
	}
}

var errSkipped = errors.New("the store has failed for other quotas a moment ago")

// update updates the groups, and sends the answers. If skipStore is true, the updates fail. update reports whether the store
// took at least one update.
func (s *Service) update(ctx context.Context, groups []*group, skipStore bool) (isStored bool) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, maxUpdateTime)
	defer cancel()
	s.mu.Lock()
	updates := make([]*groupUpdate, 0, len(groups))
	changes := make([]*backend.QuotaChange, 0, len(groups))
	for _, g := range groups {
		s.updatedTurn = max(s.updatedTurn, g.turn)
		g.isDue = false
		if s.groups[g.key] == g {
			if g.isFallback {
				s.fallBack(g, start) // the answers do not wait for the store
			}
			u := g.collect(start)
			updates, changes = append(updates, u), append(changes, &u.QuotaChange)
		}
	}
	s.mu.Unlock()
	if skipStore {
		for _, c := range changes {
			c.Err = errSkipped
		}
	} else {
		s.options.Store.Update(ctx, changes)
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range updates {
		s.counts.Conflicts += uint64(u.Conflicts)
		err := u.Err
		if err == nil && now.Sub(start) > maxUpdateTime {
			err = context.DeadlineExceeded // the holders could get the grants too late
		}
		if err == nil {
			isStored = true
			s.counts.Updates++
			s.counts.AnswerTime += now.Sub(u.firstReport)
			s.lastUpdatedAt = now
			s.finishUpdate(u, now)
			continue
		}
		s.counts.Failures++
		if s.failureLog.Allow() {
			s.options.Log.Warn("quotas not updated; Envoys keep their shares until they expire", "error", err)
		}
		s.failUpdate(u, now)
	}
	return isStored
}

func (s *Service) markDue(g *group) {
	if !g.isDue {
		g.isDue = true
		s.dueGroups = append(s.dueGroups, g)
	}
}
