package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// callRecord is one call and its answer.
type callRecord struct {
	id              int
	replica         *replica
	start, end      time.Duration
	budget          time.Duration // in which the call must be answered
	pausedTime      time.Duration // time without CPU time during the call
	sincePause      time.Duration // time from the last pause without CPU time to the start
	limits          [2]tightLimit // the tight limit at the start and at the end
	hits            int64         // on the tight limit
	isGroup         bool          // the hits are charged all or none
	gaveUp          bool          // the caller canceled the call, or its deadline passed
	isAfterRecovery bool          // sent after the recovery
	refundOf        *callRecord   // the call that this call takes back; nil if this call charges hits
	refund          *callRecord   // the call that takes this call back, or nil
	err             error
	reportCount     int              // number of reports by the service
	tightResult     backend.Result   // of the hit on the tight limit
	ownResult       backend.Result   // of the hits on the call's own counter
	otherResults    []backend.Result // of a second hit on the tight limit, and of the limit per second
	idlePermits     int64            // that replicas held without hits, if Redis has denied the call
	holder          *holder          // who takes, renews or releases a hold by this call; nil for all other calls
	slots           backend.Result   // of a call with a holder
}

// results returns the answers to the hits of a call.
func (r *callRecord) results() []backend.Result {
	if r.holder != nil {
		return []backend.Result{r.slots}
	}
	return append([]backend.Result{r.tightResult, r.ownResult}, r.otherResults...)
}

// records are all calls. They observe the services of all replicas.
type records struct {
	calls     []*callRecord
	holdCalls []*callRecord // those of the holders
	holders   []*holder
}

// all returns all calls.
func (r *records) all() []*callRecord { return slices.Concat(r.calls, r.holdCalls) }

// recordKey is the key of a *callRecord in the context of its call.
type recordKey struct{}

// CallAnswered implements service.Observer.
func (*records) CallAnswered(ctx context.Context, c *service.Call) {
	r := ctx.Value(recordKey{}).(*callRecord)
	r.reportCount++
	for i := range c.DecisionCount() {
		switch d := c.Decision(i); {
		case r.holder != nil:
			r.slots = d.Result
		case d.Descriptor == 0:
			r.tightResult = d.Result
		case d.Descriptor == 1:
			r.ownResult = d.Result
		default:
			r.otherResults = append(r.otherResults, d.Result)
		}
	}
}

// callers are the goroutines that send calls.
type callers struct {
	stopped chan struct{}
	running sync.WaitGroup
}

func startCallers(f *fleet) *callers {
	c := &callers{stopped: make(chan struct{})}
	for i := range f.plan.replicas * f.plan.callers {
		random := rand.New(rand.NewPCG(f.plan.seed, uint64(3+i)))
		c.running.Go(func() {
			for {
				select {
				case <-c.stopped:
					return
				case <-time.After(f.plan.drawPause(random)):
				}
				r := f.currentReplicas[i%f.plan.replicas]
				if r == nil {
					continue
				}
				o := callOptions{deadline: f.plan.deadline, cancels: random.Float64() < f.plan.cancelShare, patience: time.Duration(random.Int64N(int64(2 * time.Millisecond)))}
				call := f.sendCall(r, o)
				if f.plan.refundShare == 0 || !call.isAdmitted() || random.Float64() >= f.plan.refundShare {
					continue
				}
				time.Sleep(f.plan.drawPause(random))
				number := i % f.plan.replicas
				if f.plan.refundsElsewhere {
					number = f.plan.replicas - 1
				}
				if r := f.currentReplicas[number]; r != nil {
					o.refundOf = call
					call.refund = f.sendCall(r, o)
				}
			}
		})
	}
	for i := range f.plan.replicas * f.plan.holds.holders {
		random := rand.New(rand.NewPCG(f.plan.seed, uint64(3000+i)))
		c.running.Go(func() { f.runHolders(i%f.plan.replicas, random, c.stopped) })
	}
	return c
}

// drawPause returns the next pause of a caller.
func (p *plan) drawPause(r *rand.Rand) time.Duration {
	return time.Duration(r.Int64N(int64(2 * p.callerPause)))
}

// stop ends the callers after their calls.
func (c *callers) stop() {
	close(c.stopped)
	c.running.Wait()
}

// callOptions describe a call.
type callOptions struct {
	deadline        time.Duration // of the caller; 0 for none
	cancels         bool          // the caller cancels the call after its patience
	patience        time.Duration
	isAfterRecovery bool
	refundOf        *callRecord
	hits            int64 // on the tight limit, each with its own descriptor; 0 for one
}

// ownHits is the number of hits that a call charges to its own counter. A refund takes one back, so
// a second refund would show.
const ownHits = 2

// sendCall sends a call with a hit on the tight limit, and hits on a counter of its own. A refund takes
// back one hit of each.
func (f *fleet) sendCall(r *replica, o callOptions) *callRecord {
	c := &callRecord{id: len(f.records.calls), replica: r, isAfterRecovery: o.isAfterRecovery, refundOf: o.refundOf, hits: max(o.hits, 1)}
	c.isGroup = !c.isRefund() && (f.plan.allOrNone || f.plan.acquires)
	f.records.calls = append(f.records.calls, c)
	ctx := context.Background()
	if f.plan.acquires && !c.isRefund() {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(limit.AcquireKey, "true"))
	}
	response := f.send(ctx, c, o, newRequest(f.plan, c))
	if c.isDeniedBy(backend.SourceRedis) {
		c.idlePermits = f.idlePermits()
	}
	name := fmt.Sprintf("call %d", c.id)
	if c.refundOf != nil {
		name = fmt.Sprintf("refund %d of call %d", c.id, c.refundOf.id)
	}
	logf("%s to %s took %v: %v %v; tight %s, own %s", name, r.name, c.end-c.start, response.GetOverallCode(), c.err, resultText(c.tightResult), resultText(c.ownResult))
	return c
}

// send sends the request of c to its replica, and completes c.
func (f *fleet) send(ctx context.Context, c *callRecord, o callOptions, request *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
	ctx = context.WithValue(ctx, recordKey{}, c)
	c.budget = f.plan.timeout
	if o.deadline > 0 {
		c.budget = min(c.budget, o.deadline*3/4)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.deadline)
		defer cancel()
	}
	if o.cancels {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		timer := time.AfterFunc(o.patience, cancel)
		defer timer.Stop()
		defer cancel()
	}
	c.start, c.pausedTime, c.limits[0] = elapsed(), f.pausedTime, f.limit
	c.replica.lastCallAt = c.start
	c.sincePause = c.start - f.lastPause
	response, err := c.replica.service.ShouldRateLimit(ctx, request)
	c.end, c.pausedTime, c.limits[1], c.err = elapsed(), f.pausedTime-c.pausedTime, f.limit, err
	c.gaveUp = ctx.Err() != nil
	return response
}

func newRequest(p *plan, c *callRecord) *rlsv3.RateLimitRequest {
	id, hits := c.id, uint64(ownHits)
	if c.refundOf != nil {
		id, hits = c.refundOf.id, 1
	}
	descriptors := []*ratelimitv3.RateLimitDescriptor{
		newDescriptor("tight", "a", 1, c.isRefund()), newDescriptor("call", strconv.Itoa(id), hits, c.isRefund()),
	}
	for range c.hits - 1 {
		descriptors = append(descriptors, newDescriptor("tight", "a", 1, false))
	}
	if p.secondMax > 0 && !c.isRefund() {
		descriptors = append(descriptors, newDescriptor("second", "a", 1, false))
	}
	return &rlsv3.RateLimitRequest{Domain: "d", Descriptors: descriptors}
}

func newDescriptor(key, value string, hits uint64, isRefund bool) *ratelimitv3.RateLimitDescriptor {
	return &ratelimitv3.RateLimitDescriptor{
		Entries:    []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: value}},
		HitsAddend: wrapperspb.UInt64(hits), IsNegativeHits: isRefund,
	}
}

// resultText returns a result for the trace.
func resultText(r backend.Result) string {
	text := r.Source.String()
	if r.Err != nil {
		return "failed"
	}
	if r.IsDegraded() {
		text += " " + r.Reason.String()
	}
	if !r.Allowed {
		text += " denied"
	}
	return text + " " + strconv.FormatInt(r.Remaining, 10)
}
