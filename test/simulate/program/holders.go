package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/limit"
)

// holdPlan describes the limit with algorithm concurrency and its holders.
type holdPlan struct {
	slots          int           // 0 means that there are no holders
	holders        int           // at each replica
	hold           time.Duration // until a hold expires
	longestWork    time.Duration // of a holder
	anonymousShare float64       // of the holders, which have no id
	crashShare     float64       // of the holders, which release nothing
}

// drawHolds draws the holders of a third of the seeds.
func (p *plan) drawHolds(r *rand.Rand) {
	if r.IntN(3) > 0 {
		return
	}
	p.holds = holdPlan{
		slots: pick(r, 1, 2, 5, 10), holders: 1 + r.IntN(6),
		hold:        pick(r, 300*time.Millisecond, time.Second, 2*time.Second, 30*time.Second),
		longestWork: pick(r, 50*time.Millisecond, 300*time.Millisecond, 3*time.Second),

		anonymousShare: pick(r, 0, 0, 0.5, 1),
		crashShare:     pick(r, 0, 0, 0.1, 0.5),
	}
}

// holder is a caller that takes slots, works, and releases the slots.
type holder struct {
	number  int
	id      string // empty if the holder is anonymous
	slots   int64
	takes   []*callRecord // the first call, and the renewals
	release *callRecord   // nil if the holder has crashed or was denied
}

// runHolders runs one holder after another at one replica, until stopped is closed.
func (f *fleet) runHolders(replicaNumber int, random *rand.Rand, stopped <-chan struct{}) {
	sleep := func(d time.Duration) (isStopped bool) {
		select {
		case <-stopped:
			return true
		case <-time.After(d):
			return false
		}
	}
	for !sleep(f.plan.drawPause(random)) {
		f.runHolder(replicaNumber, random, sleep)
	}
}

// runHolder lets a holder take slots, work and release the slots. A holder with an id renews its hold.
// If a renewal is denied, the holder stops its work. An anonymous holder stops before its hold expires.
func (f *fleet) runHolder(replicaNumber int, random *rand.Rand, sleep func(time.Duration) (isStopped bool)) {
	p := &f.plan.holds
	h := &holder{number: len(f.records.holders), slots: min(1+random.Int64N(2), int64(p.slots))}
	work := time.Duration(random.Int64N(int64(p.longestWork)))
	if random.Float64() < p.anonymousShare {
		work = min(work, p.hold*3/4)
	} else {
		h.id = strconv.Itoa(h.number)
	}
	hasCrash := random.Float64() < p.crashShare
	o := callOptions{deadline: f.plan.deadline, cancels: random.Float64() < f.plan.cancelShare, patience: time.Duration(random.Int64N(int64(2 * time.Millisecond)))}
	call := func(hits int64) *callRecord {
		if r := f.currentReplicas[replicaNumber]; r != nil {
			return f.callAs(h, r, hits, o)
		}
		return nil
	}
	f.records.holders = append(f.records.holders, h)
	for workEnd := elapsed() + work; ; {
		if c := call(h.slots); c == nil || c.err != nil || !c.slots.Allowed {
			break
		}
		remaining := workEnd - elapsed()
		if h.id == "" || remaining < p.hold/3 {
			sleep(remaining)
			break
		}
		if sleep(p.hold / 3) {
			break
		}
	}
	if len(h.takes) > 0 && h.takes[0].isHoldTaken() && !hasCrash {
		h.release = call(-h.slots)
	}
}

// isHoldTaken reports whether the call has given its holder a hold.
func (r *callRecord) isHoldTaken() bool { return r.err == nil && r.slots.Allowed }

// callAs sends a call of a holder. Negative hits release the hold.
func (f *fleet) callAs(h *holder, r *replica, hits int64, o callOptions) *callRecord {
	c := &callRecord{id: len(f.records.holdCalls), replica: r, isAfterRecovery: o.isAfterRecovery, holder: h}
	f.records.holdCalls = append(f.records.holdCalls, c)
	if hits > 0 {
		h.takes = append(h.takes, c)
	}
	ctx := context.Background()
	if h.id != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(limit.HoldKey, h.id))
	}
	f.send(ctx, c, o, &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		newDescriptor("slots", "a", uint64(max(hits, -hits)), hits < 0),
	}})
	logf("%s (id %q, %d slots) to %s took %v: %s %v", c.name(), h.id, hits, r.name, c.end-c.start, resultText(c.slots), c.err)
	return c
}

// takeAllSlots takes all slots at once. No hold may be left.
func (f *fleet) takeAllSlots() {
	h := &holder{number: len(f.records.holders), id: "last", slots: int64(f.plan.holds.slots)}
	f.records.holders = append(f.records.holders, h)
	f.callAs(h, f.currentReplicas[0], h.slots, callOptions{isAfterRecovery: true})
}

// name returns the name of a call in the trace and in problems.
func (r *callRecord) name() string {
	switch {
	case r.holder != nil:
		return fmt.Sprintf("hold call %d of holder %d", r.id, r.holder.number)
	case r.refundOf != nil:
		return fmt.Sprintf("refund %d of call %d", r.id, r.refundOf.id)
	}
	return fmt.Sprintf("call %d", r.id)
}
