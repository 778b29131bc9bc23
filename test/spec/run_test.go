package spec

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/reload"
	"github.com/seed-81f232ab/rls/service"
)

// runner sends one trace to a stack and to the reference.
type runner struct {
	trace     *trace
	stack     *stack
	domain    string
	reloader  *reload.Reloader
	services  []*service.Service // by replica
	reference *reference
	now       int64 // in microseconds since 1970
}

// run returns how the answers of the stack differ from those of the reference, or nil.
func run(tb testing.TB, t *trace, testStack *stack) (problems []string) {
	r := &runner{trace: t, stack: testStack, domain: fmt.Sprintf("shop%d", t.seed)}
	r.reference = &reference{settings: &t.settings, ledgers: map[string]*ledger{}}
	store := new(descriptors.Store)
	r.reloader = reload.New(reload.Options{Store: store, Observer: noReports{}, Log: slog.New(slog.DiscardHandler)})
	for _, replica := range testStack.replicas {
		r.services = append(r.services, service.New(service.Options{
			Limits: store, Limiter: replica.limiter, Observers: []service.Observer{recorder{}},
			Now:        func() time.Time { return time.UnixMicro(r.now) },
			ShadowMode: t.settings.shadowMode, QuotaMode: t.settings.quotaMode, AllOrNone: t.settings.allOrNone,
		}))
	}
	if err := r.load(0); err != nil {
		return []string{err.Error()}
	}
	hasOutage := false
	for i := range t.steps {
		step := &t.steps[i]
		r.now = t.start + step.at
		testStack.now.Store(r.now)
		switch {
		case step.version > 0:
			if err := r.load(step.version); err != nil {
				problems = []string{err.Error()}
			}
		case step.request == nil:
			testStack.setOutage(step.outage)
			hasOutage = step.outage
		case step.calls > 0:
			problems = r.callAtOnce(step)
		default:
			problems = r.call(step)
		}
		if len(problems) > 0 {
			problems = append([]string{fmt.Sprintf("step %d: %s", i, step)}, problems...)
			break
		}
	}
	if hasOutage {
		testStack.setOutage(false)
	}
	return problems
}

// load puts limits in force.
func (r *runner) load(version int) error {
	r.reference.limits = r.trace.versions[version]
	text := r.reference.limits.yaml(r.domain)
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(text)}}, limitsfile.Options{})
	if err != nil {
		return fmt.Errorf("invalid limits: %w\n%s", err, text)
	}
	overrides := map[string]string{}
	for i := range r.reference.limits.overrides {
		o := &r.reference.limits.overrides[i]
		target := r.domain + "|" + o.target.key
		if o.target.value != "" {
			target += "=" + o.target.value
		}
		overrides[target] = o.json()
	}
	if err := r.reloader.Apply("test", source.Update{Limits: set, Overrides: overrides}); err != nil {
		return err
	}
	if problems := r.reloader.Status().Problems; len(problems) > 0 {
		return fmt.Errorf("invalid overrides: %s", strings.Join(problems, "\n"))
	}
	return nil
}

// answer is what the real service has answered.
type answer struct {
	response *rlsv3.RateLimitResponse
	err      error
	outcomes []outcome
	places   []int // descriptor of each outcome
}

// decisionCounts counts the decisions of all traces: by source, and denied ones.
var decisionCounts sync.Map

func countDecision(d *service.Decision) {
	key := d.Result.Source.String()
	if !d.Result.Allowed {
		key += ", denied"
	}
	n, _ := decisionCounts.LoadOrStore(key, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// recorder is a service.Observer that writes the decisions of a call into the answer in its context.
type recorder struct{}

type answerKey struct{}

// CallAnswered implements service.Observer.
func (recorder) CallAnswered(ctx context.Context, c *service.Call) {
	a := ctx.Value(answerKey{}).(*answer)
	for i := range c.DecisionCount() {
		d := c.Decision(i)
		countDecision(&d)
		a.places = append(a.places, d.Descriptor)
		v := verdict{allowed: d.Result.Allowed, remaining: d.Result.Remaining, reset: d.Result.ResetAfter, renewed: d.Result.HoldExists}
		if !v.allowed {
			v.retry = d.Result.RetryAfter
		}
		a.outcomes = append(a.outcomes, outcome{verdict: v, source: d.Result.Source.String(), err: d.Result.Err})
	}
}

// send sends a request to a replica.
func (r *runner) send(q *request, replica int) *answer {
	message := &rlsv3.RateLimitRequest{Domain: r.domain}
	for i := range q.descriptors {
		message.Descriptors = append(message.Descriptors, q.descriptors[i].message())
	}
	a := &answer{}
	ctx := context.WithValue(context.Background(), answerKey{}, a)
	header := metadata.MD{}
	if q.acquire {
		header.Set("rls-acquire", "true")
	}
	if q.holdID != "" {
		header.Set("rls-hold", q.holdID)
	}
	startTime := time.Now()
	a.response, a.err = r.services[replica].ShouldRateLimit(metadata.NewIncomingContext(ctx, header), message)
	for i := range a.outcomes {
		a.outcomes[i].duration = time.Since(startTime).Microseconds()
	}
	return a
}

// message returns the descriptor as Envoy sends it.
func (d *descriptor) message() *ratelimitv3.RateLimitDescriptor {
	m := &ratelimitv3.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(uint64(max(d.hits, -d.hits))), IsNegativeHits: d.hits < 0}
	for _, e := range d.entries {
		m.Entries = append(m.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: e.key, Value: e.value})
	}
	if d.ownLimit != nil {
		m.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(d.ownLimit.requests), Unit: typev3.RateLimitUnit_MINUTE}
	}
	return m
}

// call sends the request of a step and compares the answer.
func (r *runner) call(s *step) []string {
	rules, hits, isRefused := r.reference.match(s.request)
	a := r.send(s.request, s.replica)
	switch {
	case isRefused && grpcstatus.Code(a.err) != codes.PermissionDenied:
		return []string{fmt.Sprintf("got error %v, want PERMISSION_DENIED", a.err)}
	case isRefused:
		return nil
	case a.err != nil:
		return []string{a.err.Error()}
	}
	if problem := checkHits(a, hits); problem != "" {
		return []string{problem}
	}
	statuses, denied, problems := r.reference.decide(s.request, rules, hits, a.outcomes, s.replica, r.now)
	return append(problems, checkResponse(a, statuses, denied)...)
}

// checkHits reports whether the service decided other hits than the reference.
func checkHits(a *answer, hits []hit) string {
	var want []int
	for i := range hits {
		want = append(want, hits[i].descriptor)
	}
	if fmt.Sprint(want) != fmt.Sprint(a.places) {
		return fmt.Sprintf("limits of descriptors %v decided, want %v", a.places, want)
	}
	return ""
}

// checkResponse compares the response with the statuses that follow from the decisions.
func checkResponse(a *answer, statuses []status, denied bool) (problems []string) {
	if got := a.response.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT; got != denied {
		problems = append(problems, fmt.Sprintf("got %s, want denied %v", a.response.OverallCode, denied))
	}
	for i, want := range statuses {
		st := a.response.Statuses[i]
		got := status{
			over: st.Code == rlsv3.RateLimitResponse_OVER_LIMIT, hasLimit: st.CurrentLimit != nil,
			remaining: int64(st.LimitRemaining), wait: st.DurationUntilReset.AsDuration().Microseconds(),
		}
		if want.hasMinWait && got.wait > want.wait {
			want.wait = got.wait
		}
		want.hasMinWait = false
		if got != want {
			problems = append(problems, fmt.Sprintf("status %d: got %+v, want %+v", i, got, want))
		}
	}
	return problems
}

// callAtOnce sends the request of a step several times at once, to all replicas.
func (r *runner) callAtOnce(s *step) (problems []string) {
	rules, hits, isRefused := r.reference.match(s.request)
	if isRefused {
		return nil
	}
	answers := make([]*answer, s.calls)
	readySignal := make(chan struct{})
	var calls sync.WaitGroup
	for i := range answers {
		calls.Go(func() {
			<-readySignal
			answers[i] = r.send(s.request, i%len(r.services))
		})
	}
	close(readySignal)
	calls.Wait()
	var allOutcomes [][]outcome
	for _, a := range answers {
		if a.err != nil {
			return []string{a.err.Error()}
		}
		if problem := checkHits(a, hits); problem != "" {
			return []string{problem}
		}
		allOutcomes = append(allOutcomes, a.outcomes)
		statuses, over := assemble(rules, hits, a.outcomes)
		denied := r.reference.isDenied(rules, over, hits) && !r.trace.settings.shadowMode
		for i := range statuses {
			statuses[i].hasMinWait = statuses[i].over
		}
		problems = append(problems, checkResponse(a, statuses, denied)...)
	}
	return append(problems, r.reference.decideTotals(s.request, rules, hits, allOutcomes, r.now)...)
}

// noReports is a reload.Observer that keeps nothing.
type noReports struct{}

func (noReports) LimitsLoaded(int)                         {}
func (noReports) LimitsChanged(reload.LimitsChange)        {}
func (noReports) LimitsRejected(error)                     {}
func (noReports) ConfigProblems(int)                       {}
func (noReports) Overrides(reload.OverrideCounts)          {}
func (noReports) OverridesChanged([]reload.OverrideChange) {}
func (noReports) SourceState(string, error)                {}
func (noReports) SourceRead(string)                        {}
