package quota

import (
	"fmt"
	"math"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/descriptors"
	division "github.com/seed-81f232ab/rls/limit/quota"
)

type bucket struct {
	stream *stream
	key    bucketKey

	group       *group            // nil if the bucket gets a fixedAnswer
	holder      division.HolderID // names the bucket in its group
	fixedAnswer fixedAnswer       // the last answer without a group

	// requests and denied count since the last report that was passed to the group. requests includes denied.
	requests, denied int64
	reportedAt       time.Time // the last report
	hasReport        bool      // the next update of the group counts the report
	isReturning      bool      // the Envoy had another stream before
	hasShare         bool      // the bucket has got a share in this group
	usedAt           time.Time // the last report with a request
}

// fixedAnswer is an answer that needs no division.
type fixedAnswer uint8

const (
	noAnswer fixedAnswer = iota // no limits are loaded, or the bucket has a group
	allowAll
	denyAll
)

// The bounds of a bucket id, in bytes, and of the requests in one report.
const (
	maxIDBytes  = 4 << 10
	maxRequests = math.MaxUint32
)

// fixedAnswerTTL is the time to live of answers without a share.
const fixedAnswerTTL = 15 * time.Second

// newStreamTime is the longest time that the first report of a bucket covers in a new Envoy. A longer time means that the
// Envoy had another stream before.
const newStreamTime = time.Second

// bucketOf returns the bucket with this id, and adds the bucket if it is new. If b is nil, reason says why.
func (s *Service) bucketOf(st *stream, id *rlqsv3.BucketId, now time.Time) (b *bucket, reason string) {
	entries := id.GetBucket()
	if len(entries) == 0 {
		return nil, "bucket_id: got no entry, want at least one"
	}
	if bound := s.options.MaxEntries; bound > 0 && len(entries) > bound {
		return nil, fmt.Sprintf("bucket_id: got %d entries, want at most %d (MAX_ENTRIES)", len(entries), bound)
	}
	key, ok := newBucketKey(st.domain, entries)
	if !ok {
		return nil, fmt.Sprintf("bucket_id: got more than %d bytes", maxIDBytes)
	}
	if b := st.buckets[key]; b != nil {
		return b, ""
	}
	if len(st.buckets) >= s.options.MaxBuckets {
		return nil, fmt.Sprintf("stream: got more than %d buckets (QUOTA_MAX_BUCKETS)", s.options.MaxBuckets)
	}
	b = &bucket{stream: st, key: key, usedAt: now}
	if st.buckets == nil || !s.takeMemory(st.client, b.memoryBytes()) {
		return nil, "stream: the buckets of this address use too much memory (QUOTA_MAX_BUCKETS)"
	}
	st.buckets[key] = b
	s.evaluate(b)
	return b, ""
}

func (b *bucket) count(usage *rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage, now time.Time) {
	denied := int64(min(usage.GetNumRequestsDenied(), maxRequests))
	requests := denied + int64(min(usage.GetNumRequestsAllowed(), maxRequests))
	if b.reportedAt.IsZero() {
		b.isReturning = usage.GetTimeElapsed().AsDuration() > newStreamTime
	}
	b.requests = min(b.requests+requests, maxRequests)
	b.denied = min(b.denied+denied, maxRequests)
	b.reportedAt, b.hasReport = now, true
	if requests > 0 {
		b.usedAt = now
	}
}

// evaluate finds the answer for b in the limits in force. It sends a changed answer, or makes the next tick update the
// group.
func (s *Service) evaluate(b *bucket) {
	foundRule, key, answer := s.match(b)
	if foundRule == nil {
		if b.group != nil {
			s.leaveGroup(b)
		}
		if b.fixedAnswer != answer {
			b.fixedAnswer = answer
			b.sendFixedAnswer()
		}
		return
	}
	b.fixedAnswer = noAnswer
	if b.group == nil || b.group.key != key {
		s.leaveGroup(b)
		if !s.joinGroup(b, key) {
			b.fixedAnswer = denyAll
			s.refuse(b, foundRule.Path)
			return
		}
	}
	b.group.setRule(foundRule)
	s.markDue(b.group)
}

// match returns the rule whose limit b shares, and the name of its counter. Without such a rule, it returns the answer.
func (s *Service) match(b *bucket) (_ *descriptors.Rule, key string, answer fixedAnswer) {
	if s.config == nil {
		return nil, "", noAnswer
	}
	domain := s.config.Domain(b.key.domain())
	if domain == nil || s.config.IsShadow(s.options.ShadowMode) {
		return nil, "", allowAll
	}
	entries := b.key.entries(domain.Source.QuotaOrder)
	var budget descriptors.Budget
	foundRule := domain.MatchWithBudget(&budget, entries)
	switch {
	case foundRule == domain.UntestedRule:
		return nil, "", denyAll
	case foundRule == nil || foundRule.Quota == nil || foundRule.IsUnlimited() || len(foundRule.Limits) != 1:
		return nil, "", allowAll
	}
	name := foundRule.AppendKey(nil, b.key.domain(), entries)
	switch {
	case foundRule.IsShadowed(name):
		return nil, "", allowAll
	case foundRule.Limits[0].Requests == 0:
		return nil, "", denyAll
	}
	return foundRule, string(name), noAnswer
}

func (b *bucket) sendFixedAnswer() {
	b.requests, b.denied, b.hasReport = 0, 0, false
	b.sendBlanketRule(b.fixedAnswer, fixedAnswerTTL)
}

func (b *bucket) sendBlanketRule(answer fixedAnswer, ttl time.Duration) {
	if answer == noAnswer {
		return
	}
	rule := typev3.RateLimitStrategy_ALLOW_ALL
	if answer == denyAll {
		rule = typev3.RateLimitStrategy_DENY_ALL
	}
	b.assign(&typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: rule}}, ttl)
}

func (b *bucket) sendGrant(g division.Grant, l *division.Limit) {
	b.hasShare = true
	ttl := time.Duration(l.TTL) * time.Microsecond
	if g.Rate == 0 || g.Burst == 0 {
		b.sendBlanketRule(denyAll, ttl)
		return
	}
	b.assign(&typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
		MaxTokens: uint32(g.Burst), TokensPerFill: wrapperspb.UInt32(uint32(g.Rate)),
		FillInterval: durationpb.New(time.Duration(l.Interval) * time.Microsecond),
	}}}, ttl)
}

func (b *bucket) assign(strategy *typev3.RateLimitStrategy, ttl time.Duration) {
	b.stream.queue(b, &rlqsv3.RateLimitQuotaResponse_BucketAction{BucketAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
		QuotaAssignmentAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
			AssignmentTimeToLive: durationpb.New(ttl), RateLimitStrategy: strategy,
		},
	}})
}

func (s *Service) abandonIdleBuckets(now time.Time) {
	if now.Before(s.nextIdleSearch) {
		return
	}
	s.nextIdleSearch = now.Add(idleSearchInterval)
	for st := range s.streams {
		for key, b := range st.buckets {
			if now.Sub(b.usedAt) > idleTime {
				st.queue(b, &rlqsv3.RateLimitQuotaResponse_BucketAction{BucketAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction_{
					AbandonAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction{},
				}})
				s.forget(b)
				delete(st.buckets, key)
			}
		}
	}
}
