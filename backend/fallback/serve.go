package fallback

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// serveFailedHits tells the breaker of each hit whether the primary has decided the hit, and decides the hits that the
// primary has not decided. It keeps an error that the caller has caused, such as a cancellation.
func (l *Limiter) serveFailedHits(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	var localBatch *backend.SubBatch
	var space [8]failedHit // requests with more hits allocate
	failedHits := space[:0]
	for i := range hits {
		h, r := &hits[i], &results[i]
		reason := backend.ReasonOf(r.Err)
		switch {
		case r.Err == nil:
			l.breakerOf(h).recordSuccess()
			continue
		case !canServe(ctx, reason):
			continue
		case reason != backend.ReasonOverload && !backend.IsNotSent(r.Err):
			l.breakerOf(h).recordFailure(now, r.Err)
		}
		failedHits = append(failedHits, failedHit{i, r.Err})
		if l.modeOf(h.Limit) != limit.FailLocal {
			*r = l.fixedAnswer(h, reason)
			continue
		}
		if localBatch == nil {
			localBatch = backend.NewSubBatch()
		}
		localBatch.AddWithPrefix(Namespace, i, l.localHit(h))
	}
	if len(failedHits) == 0 {
		return
	}
	l.options.Observer.HitsServed(len(failedHits))
	if localBatch != nil {
		l.serveLocal(ctx, now, localBatch, hits, results)
		localBatch.Release()
	}
	if backend.HasGroup(hits) {
		l.undoGroup(ctx, now, hits, results)
	}
	l.recordDecisions(hits, results, failedHits)
}

// canServe reports whether the fallback decides a hit that the primary has not decided for this reason. It returns false
// for ReasonNone, because the error would occur in the secondary too.
func canServe(ctx context.Context, reason backend.Reason) bool {
	return reason == backend.ReasonBreakerOpen || reason != backend.ReasonNone && ctx.Err() == nil
}

// undoGroup refunds the charged hits of a denied group. If the primary denies the group, it has charged nothing, but the
// secondary can have charged the hits that it decided. If only the secondary denies the group, the primary can have charged
// the hits that it decided. Other callers see the charges until the refund.
func (l *Limiter) undoGroup(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	var isDenied, isDeniedByPrimary, isDeniedBySecondary bool
	for i := range hits {
		if r := &results[i]; hits[i].DeniesGroup(r) {
			isDenied = true
			isDeniedByPrimary = isDeniedByPrimary || !r.IsDegraded()
			isDeniedBySecondary = isDeniedBySecondary || r.IsDegraded() && r.Mode == limit.FailLocal
		}
	}
	if !isDenied {
		return
	}
	refunds := backend.NewSubBatch()
	defer refunds.Release()
	for i, h := range hits {
		r := &results[i]
		isCharged := h.IsInGroup() && r.Err == nil && r.Allowed && !r.HoldExists // a renewal charges nothing
		switch {
		case !isCharged:
		case !r.IsDegraded() && !isDeniedByPrimary:
			h.N, h.WindowStart = -h.N, r.WindowStart
			refunds.Add(i, h)
		case r.IsDegraded() && r.Mode == limit.FailLocal && !isDeniedBySecondary:
			l.refundSecondary(&h)
		}
	}
	refunds.Take(context.WithoutCancel(ctx), now, l.options.Primary)
}

type failedHit struct {
	index int   // the index of the hit in the Take
	err   error // the error of the primary
}

func (l *Limiter) localHit(h *backend.Hit) backend.Hit {
	return backend.Hit{Key: h.Key, Limit: l.shareOf(h.Limit), N: h.N, HoldID: h.HoldID, Shadow: h.Shadow, AllOrNone: h.AllOrNone}
}

// fixedAnswer returns the answer to h if its mode is FailAllow or FailDeny. The retry time of a denial
// is the longest pause between two probes.
func (l *Limiter) fixedAnswer(h *backend.Hit, reason backend.Reason) backend.Result {
	r := backend.Result{Source: backend.SourceFallback, Reason: reason, Mode: l.modeOf(h.Limit)}
	if r.Mode == limit.FailAllow {
		r.Allowed, r.Remaining = true, h.Limit.Capacity()
		return r
	}
	pause := maxProbePause.Microseconds()
	r.Allowed, r.ResetAfter = h.N < 0, pause
	if !r.Allowed {
		r.RetryAfter = pause
	}
	return r
}

// serveLocal lets the secondary decide the hits of localBatch, which is a part of hits.
func (l *Limiter) serveLocal(ctx context.Context, now time.Time, localBatch *backend.SubBatch, hits []backend.Hit, results []backend.Result) {
	for batchIndex, i := range localBatch.Index {
		l.startFromLastCount(now, &hits[i], &localBatch.Hits[batchIndex])
	}
	localBatch.Take(ctx, now, l.options.Secondary)
	for batchIndex, i := range localBatch.Index {
		r := localBatch.Results[batchIndex]
		r.Source, r.Reason, r.Mode = backend.SourceFallback, backend.ReasonOf(results[i].Err), limit.FailLocal
		r.Share = localBatch.Hits[batchIndex].Limit
		results[i] = r
	}
}

func (l *Limiter) modeOf(lim *limit.Limit) limit.FailureMode {
	return cmp.Or(lim.OnBackendFailure, l.options.Mode)
}

func (l *Limiter) shareOf(lim *limit.Limit) *limit.Limit {
	return lim.Scaled(cmp.Or(lim.FallbackRatio, l.options.Ratio))
}

// Peek implements backend.Layer. It changes no breaker and counts no decision.
func (l *Limiter) Peek(ctx context.Context, now time.Time, hits []backend.Hit, peeks []backend.Peek) {
	backend.PeekWith(ctx, now, l.takePeeks, hits, peeks)
}

// Forget implements backend.Layer. It keeps the counters of the secondary.
func (l *Limiter) Forget(*backend.Hit) {}

func (l *Limiter) takePeeks(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	l.askPrimary(ctx, now, hits, results)
	localBatch := backend.NewSubBatch()
	defer localBatch.Release()
	for i := range hits {
		h, r := &hits[i], &results[i]
		switch {
		case r.Err == nil:
		case !canServe(ctx, backend.ReasonOf(r.Err)):
		case l.modeOf(h.Limit) == limit.FailLocal:
			localBatch.AddWithPrefix(Namespace, i, l.localHit(h))
		default:
			*r = l.fixedAnswer(h, backend.ReasonOf(r.Err))
		}
	}
	l.serveLocal(ctx, now, localBatch, hits, results)
}

// FailingSince returns the time at which the breaker of h started to fail, or opened. If the breaker is closed, it returns
// the zero Time.
func (l *Limiter) FailingSince(h *backend.Hit) time.Time {
	if s := l.breakerOf(h).status(); s.State != Closed {
		return s.StateStart
	}
	return time.Time{}
}

// Secondary is the Limiter that decides in place of the primary.
type Secondary interface {
	backend.Limiter

	// SpendAtLeast raises the spent hits of a counter to n. If n hits or more are spent, it changes nothing. n is at
	// most the capacity of l.
	SpendAtLeast(now time.Time, key []byte, l *limit.Limit, n int64)
}

// startFromLastCount lets the counter of h in the secondary start from the last count of the primary. For example, if half
// of the limit was spent, half of the share is spent at the start. localHit is the hit that the secondary gets.
func (l *Limiter) startFromLastCount(now time.Time, h, localHit *backend.Hit) {
	if l.options.LastCount == nil || h.Limit.Algorithm.HasHolds() { // nobody would release holds that come from a count
		return
	}
	spentHits, startTime, ok := l.options.LastCount(now, h)
	if !ok || spentHits <= 0 {
		return
	}
	if h.Limit.Algorithm.AlignsWindows() {
		startTime = now // the clocks of the primary and of this machine can differ, but both are in the same window
	}
	spentPart := min(float64(spentHits)/float64(h.Limit.Capacity()), 1)
	share := localHit.Limit
	l.options.Secondary.SpendAtLeast(startTime, localHit.Key, share, int64(math.Floor(spentPart*float64(share.Capacity()))))
}
