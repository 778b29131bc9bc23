// Package candidate tries limits on live calls before they come into force. The limits have their
// own counters, and change no answer.
//
// Terms:
//
//   - candidate: the limits that are evaluated;
//   - newly denied: the limits in force admit the call, and the candidate denies the call;
//   - newly admitted: the limits in force deny the call, and the candidate admits the call.
package candidate

import (
	"context"
	"sync"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/service"
)

// Bounds of the work for a candidate. If the queue is full, further calls are not evaluated.
const (
	queueSize = 4096 // bounds the calls that wait for their evaluation
	workers   = 16   // bounds the calls that are evaluated at the same time
)

// Options are the options of New.
type Options struct {
	Limiter backend.Limiter // has its own counters, which the limits in force do not use

	AllOrNone, QuotaMode bool // the settings of the service
}

// Result is the outcome of an evaluated call.
type Result uint8

// The results.
const (
	Same          Result = iota // the limits in force give the same answer
	NewlyDenied                 // only the candidate denies
	NewlyAdmitted               // only the limits in force deny
	Failed                      // the candidate could not decide
	Dropped                     // the queue was full
)

// Results lists all results.
var Results = [...]Result{Same, NewlyDenied, NewlyAdmitted, Failed, Dropped}

// String returns the name of the result in metrics.
func (r Result) String() string {
	return [...]string{"same", "newly_denied", "newly_admitted", "failed", "dropped"}[r]
}

// Candidate evaluates a candidate. It is a service.Observer and safe for concurrent use.
type Candidate struct {
	Limits descriptors.Store // the limits of the candidate

	options Options
	queue   chan *evaluation
	stats   stats
}

var _ service.Observer = (*Candidate)(nil)

// evaluation is a call that waits for its evaluation. It is also the observer of the service that evaluates the call.
type evaluation struct {
	candidate          *Candidate
	start              time.Time
	request            *rlsv3.RateLimitRequest
	isDenied           bool   // the limits in force deny the call
	isDescriptorDenied []bool // the limits in force deny the descriptor; the index is the descriptor
}

// New returns a Candidate without limits. It evaluates no call before Run.
func New(options Options) *Candidate {
	return &Candidate{options: options, queue: make(chan *evaluation, queueSize), stats: stats{rules: map[string]uint64{}}}
}

// CallAnswered implements service.Observer. It copies the request for a later evaluation.
func (c *Candidate) CallAnswered(_ context.Context, call *service.Call) {
	if call.Err != nil || c.Limits.Load() == nil {
		return
	}
	e := &evaluation{
		candidate: c, start: call.Start,
		request:            proto.CloneOf(call.Request),
		isDenied:           call.GlobalShadow || call.Response.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT,
		isDescriptorDenied: make([]bool, len(call.Request.GetDescriptors())),
	}
	for i, status := range call.Response.GetStatuses() {
		e.isDescriptorDenied[i] = status.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT
	}
	select {
	case c.queue <- e:
	default:
		c.stats.add(Dropped)
	}
}

// Run evaluates calls until ctx is done.
func (c *Candidate) Run(ctx context.Context) {
	var workerGroup sync.WaitGroup
	for range workers {
		workerGroup.Go(func() {
			for {
				select {
				case e := <-c.queue:
					evaluatingService := service.New(service.Options{
						Limits: &c.Limits, Limiter: c.options.Limiter, Observers: []service.Observer{e},
						AllOrNone: c.options.AllOrNone, QuotaMode: c.options.QuotaMode, Now: func() time.Time { return e.start },
					})
					_, _ = evaluatingService.ShouldRateLimit(ctx, e.request) // the CallAnswered of e gets the answer
				case <-ctx.Done():
					return
				}
			}
		})
	}
	workerGroup.Wait()
}

// CallAnswered implements service.Observer: it compares the answers.
func (e *evaluation) CallAnswered(ctx context.Context, call *service.Call) {
	candidate := e.candidate
	if call.Err != nil {
		if ctx.Err() == nil {
			candidate.stats.add(Failed)
		}
		return
	}
	isDenied := call.Response.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT
	switch {
	case isDenied && !e.isDenied:
		candidate.stats.add(NewlyDenied)
	case e.isDenied && !isDenied:
		candidate.stats.add(NewlyAdmitted)
	default:
		candidate.stats.add(Same)
	}
	for i, status := range call.Response.GetStatuses() {
		if rule := call.Rules[i]; rule != nil && status.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT && !e.isDescriptorDenied[i] {
			candidate.stats.addRule(rule.Path)
		}
	}
}
