package redis

import (
	"sync/atomic"
	"time"
)

// pace has the recent times of a queue's batches. It shows whether hits wait because Redis is slow, or
// because there are too many hits. A moment is a result of microsSinceProcessStart, or 0 for never.
type pace struct {
	batchesInFlight atomic.Int64
	lastAnswer      atomic.Int64 // the moment at which Redis last answered a batch
	lastFailure     atomic.Int64 // the moment at which a batch last failed
	slowestTime     atomic.Int64 // microseconds that the slowest recent batch took; a batch of 40 ms counts as recent for 40 ms after its end
	slowestEnd      atomic.Int64 // the moment at which the slowest recent batch ended

	hitCost         atomic.Int64 // nanoseconds for each hit of the last large batch
	previousHitCost atomic.Int64 // hitCost of the large batch before the last one; 0 if it ended more than costTime earlier
	hitCostMoment   atomic.Int64 // the moment at which hitCost was measured
}

const (
	// largeBatchHits is the least number of hits of a large batch. The time of a smaller batch
	// hardly depends on its hits.
	largeBatchHits = 64

	// costTime is how long a measured cost of a hit counts, in microseconds. After costTime, the
	// next two large batches measure the cost again.
	costTime = 300_000
)

// begin records that a batch is sent.
func (p *pace) begin() { p.batchesInFlight.Add(1) }

// end records that Redis has answered a batch of this number of hits after the time took, or that the
// batch has failed with err.
func (p *pace) end(took time.Duration, hits int, err error) {
	p.batchesInFlight.Add(-1)
	p.recordHitCost(took, hits, err)
	now, slowest := microsSinceProcessStart(), p.slowestTime.Load()
	if err != nil {
		p.lastFailure.Store(now)
		return
	}
	p.lastAnswer.Store(now)
	if took.Microseconds() >= slowest || now-p.slowestEnd.Load() > slowest {
		p.slowestTime.Store(took.Microseconds())
		p.slowestEnd.Store(now)
	}
}

// recordHitCost records the cost of a hit if the batch is large. If the batch failed with err, took
// counts twice, because the batch would have taken longer.
func (p *pace) recordHitCost(took time.Duration, hits int, err error) {
	if hits < largeBatchHits {
		return
	}
	if err != nil {
		took *= 2
	}
	now, previous := microsSinceProcessStart(), p.hitCost.Load()
	if now-p.hitCostMoment.Load() > costTime {
		previous = 0
	}
	p.previousHitCost.Store(previous)
	p.hitCost.Store(took.Nanoseconds() / int64(hits))
	p.hitCostMoment.Store(now)
}

// expectedTime returns the least time that a batch with this number of hits will take, or 0 if no cost
// is known. It uses the faster one of the last two large batches, because a single batch can be slow
// by chance.
func (p *pace) expectedTime(hits int) time.Duration {
	if hits < largeBatchHits || microsSinceProcessStart()-p.hitCostMoment.Load() > costTime {
		return 0
	}
	return time.Duration(min(p.hitCost.Load(), p.previousHitCost.Load()) * int64(hits))
}

// isStalled reports whether Redis is the cause of a wait in the queue, which lasts for waitTime until
// now. Redis is the cause if one batch took at least half of the wait, or if Redis answered no batch.
func (p *pace) isStalled(waitTime time.Duration) bool {
	waitStart := microsSinceProcessStart() - waitTime.Microseconds()
	isInWait := func(moment int64) bool { return moment != 0 && moment > waitStart }
	if !isInWait(p.lastAnswer.Load()) {
		return p.batchesInFlight.Load() > 0 || isInWait(p.lastFailure.Load())
	}
	return p.slowestTime.Load() >= waitTime.Microseconds()/2
}
