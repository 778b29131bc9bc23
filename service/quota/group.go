package quota

import (
	"cmp"
	"hash/maphash"
	"math/rand/v2"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
	division "github.com/seed-81f232ab/rls/limit/quota"
)

type group struct {
	key         string
	hash        uint64 // the hash of key
	path        string // the path of the rule
	limit       division.Limit
	failureMode limit.FailureMode
	ratio       float64 // the part of the limit that this replica divides while the store fails
	buckets     map[division.HolderID]*bucket
	isDue       bool
	turn        int64 // due groups with smaller turns are updated first; 0 before the first report

	ownHolders []division.Holder // the holders of this replica, with their last grants
	// otherHolders is the number of all other holders. Together they may admit otherRate requests a second.
	otherHolders int
	otherRate    float64

	updatedAt time.Time // the last successful update
	storeTime int64     // the time of the store at updatedAt, in microseconds
	expiry    time.Time // the first expiry of a holder, at which its share goes to the others; zero without such a holder

	// isFallback says that the store has failed for so long that all grants have expired. This replica then divides a part
	// of the limit alone, in the state fallback.
	isFallback bool
	fallback   *division.State
}

// joinGroup adds b to a group. It returns false if the client has as many holders in the group as there are free places.
func (s *Service) joinGroup(b *bucket, key string) bool {
	g, c := s.groups[key], b.stream.client
	if g == nil {
		g = &group{key: key, hash: maphash.String(s.hashSeed, key), buckets: map[division.HolderID]*bucket{}, updatedAt: s.lastUpdatedAt}
		g.storeTime = g.updatedAt.UnixMicro()
	}
	if c.holders[g.hash] >= division.MaxHolders-len(g.buckets)-g.otherHolders {
		return false
	}
	c.holders[g.hash]++
	s.groups[key] = g
	b.group, b.holder, b.hasShare, b.hasReport = g, division.HolderID(rand.Uint64()), false, true
	b.isReturning = b.isReturning && b.reportedAt.IsZero() // a report with another answer proves that no grant is in force
	g.buckets[b.holder] = b
	return true
}

func (s *Service) leaveGroup(b *bucket) {
	g := b.group
	if g == nil {
		return
	}
	delete(g.buckets, b.holder)
	g.otherHolders++ // the store keeps the holder until its grant has expired; the next update counts all holders again
	b.group = nil
	s.departures = append(s.departures, departure{b.stream.client, g.hash, time.Now().Add(time.Duration(g.limit.TTL+g.limit.Delay) * time.Microsecond)})
	s.freeMemory(b.stream.client, -departureMemory)
	if len(g.buckets) == 0 {
		delete(s.groups, g.key)
	}
}

func (g *group) setRule(r *descriptors.Rule) {
	l := r.Limits[0].Limit
	g.path, g.failureMode, g.ratio = r.Path, l.OnBackendFailure, l.FallbackRatio
	g.limit = limitOf(l, r)
}

// The interval of the fill rates. Envoy fills a bucket continuously with tokens per interval, and both are whole numbers.
const (
	second      = 1_000_000
	minInterval = 60 * second
	minTokens   = 1000 // in an interval, so that three Envoys can have equal shares
	maxTokens   = 1<<32 - 1
)

// limitOf returns the limit of a rule in whole tokens of an interval.
func limitOf(l *limit.Limit, r *descriptors.Rule) division.Limit {
	requests, period := l.Max(), l.Period()
	interval := int64(minInterval)
	if neededInterval := (minTokens*period + requests - 1) / requests; neededInterval > interval {
		interval = (neededInterval + minInterval - 1) / minInterval * minInterval
	}
	tokens := float64(requests) * float64(interval) / float64(period)
	if tokens > maxTokens {
		interval = second
		tokens = float64(requests) * second / float64(period)
	}
	q := r.Quota
	return division.Limit{
		Rate: int64(tokens), Interval: interval, Burst: l.Capacity(),
		MinShare: q.MinShare, Headroom: q.Headroom, TTL: q.TTL, Delay: delay.Microseconds(),
	}
}

type groupUpdate struct {
	backend.QuotaChange
	group       *group
	reports     []division.Report
	firstReport time.Time

	// The last call of Apply has set the fields below.
	grants  []division.Grant
	holders []division.Holder
	now     int64
	expiry  int64
}

func (g *group) collect(now time.Time) *groupUpdate {
	u := &groupUpdate{group: g, firstReport: now}
	for id, b := range g.buckets {
		if !b.hasReport || b.hasShare && now.Sub(b.reportedAt) > maxReportAge {
			// A late report does not prove that the Envoy has received the last grant, so the next report has its requests.
			b.hasReport = false
			continue
		}
		if age := now.Sub(b.reportedAt); age <= maxReportAge && age > now.Sub(u.firstReport) {
			u.firstReport = b.reportedAt
		}
		u.reports = append(u.reports, division.Report{Holder: id, Requests: b.requests, Denied: b.denied, IsReturning: b.isReturning && !b.hasShare})
		b.requests, b.denied, b.hasReport = 0, 0, false
	}
	l, ownHolders := g.limit, g.ownHolders
	u.Key = []byte(g.key)
	u.Apply = func(oldState []byte, intactSince, now int64) ([]byte, time.Duration) {
		state, err := division.Decode(oldState)
		isFrozen := err != nil || now < intactSince+l.TTL+l.Delay
		u.grants = state.Apply(&l, now, division.Update{Reports: u.reports, OwnHolders: ownHolders, IsFrozen: isFrozen})
		u.holders, u.now, u.expiry = state.Holders(), now, state.Expiry(&l)
		return state.Append(nil), stateTTL(&l)
	}
	return u
}

// stateTTL returns how long a state without changes must be kept: until all grants have expired and the burst is there
// again.
func stateTTL(l *division.Limit) time.Duration {
	fillTime := float64(l.Burst) / float64(max(l.Rate, 1)) * float64(l.Interval)
	return time.Duration(l.TTL+l.Delay+minInterval+int64(fillTime)) * time.Microsecond
}

// finishUpdate takes the result of an update that is stored, and sends the grants.
func (s *Service) finishUpdate(u *groupUpdate, now time.Time) {
	g := u.group
	for _, b := range g.buckets {
		if g.isFallback && !b.hasShare { // the fallback has answered without a share
			b.hasReport = true
			s.markDue(g)
		}
	}
	g.updatedAt, g.storeTime, g.isFallback, g.fallback = now, u.now, false, nil
	g.expiry = time.Time{}
	if u.expiry > 0 {
		g.expiry = now.Add(time.Duration(u.expiry-u.now) * time.Microsecond)
	}
	s.send(g, u.grants, u.holders, &g.limit)
}

func (s *Service) send(g *group, grants []division.Grant, holders []division.Holder, l *division.Limit) {
	g.ownHolders, g.otherHolders, g.otherRate = make([]division.Holder, 0, len(g.buckets)), 0, 0
	for _, h := range holders {
		if g.buckets[h.ID] != nil {
			g.ownHolders = append(g.ownHolders, h)
		} else {
			g.otherHolders++
			g.otherRate += perSecond(&h, h.MaxRate)
		}
	}
	for _, grant := range grants {
		if b := g.buckets[grant.Holder]; b != nil && grant.Rate == 0 && len(holders) >= division.MaxHolders {
			s.refuse(b, g.path)
		} else if b != nil {
			b.sendGrant(grant, l)
		}
	}
}

// failUpdate gives the reports of an update that was not stored back to their buckets. If all grants have expired, the
// fallback begins.
func (s *Service) failUpdate(u *groupUpdate, now time.Time) {
	g := u.group
	for _, r := range u.reports {
		if b := g.buckets[r.Holder]; b != nil {
			b.requests, b.denied, b.hasReport = min(b.requests+r.Requests, maxRequests), min(b.denied+r.Denied, maxRequests), true
			s.markDue(g)
		}
	}
	if !g.isFallback && now.Sub(g.updatedAt) > time.Duration(g.limit.TTL+g.limit.Delay)*time.Microsecond {
		g.isFallback, g.fallback = true, &division.State{}
		for _, b := range g.buckets {
			b.hasShare, b.hasReport = false, true
		}
		s.fallBack(g, now)
	}
}

// fallBack answers the reports of g without the store: this replica divides a part of the limit among its own buckets.
func (s *Service) fallBack(g *group, now time.Time) {
	l, mode, ratio := g.limit, cmp.Or(g.failureMode, s.options.FailureMode), cmp.Or(g.ratio, s.options.FallbackRatio)
	u := g.collect(now)
	if mode == limit.FailAllow || mode == limit.FailDeny {
		answer := allowAll
		if mode == limit.FailDeny {
			answer = denyAll
		}
		for _, r := range u.reports {
			g.buckets[r.Holder].sendBlanketRule(answer, time.Duration(l.TTL)*time.Microsecond)
		}
		return
	}
	l.Rate, l.Burst = int64(float64(l.Rate)*ratio), max(int64(float64(l.Burst)*ratio), 1)
	storeTime := g.storeTime + now.Sub(g.updatedAt).Microseconds()
	grants := g.fallback.Apply(&l, storeTime, division.Update{Reports: u.reports, OwnHolders: g.ownHolders})
	s.send(g, grants, g.fallback.Holders(), &l)
}
