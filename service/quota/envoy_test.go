package quota

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

// pipe is a stream in memory. Both sides use channels, so that the time of a bubble of synctest can pass.
type pipe struct {
	grpc.ServerStream
	ctx       context.Context
	reports   chan *rlqsv3.RateLimitQuotaUsageReports
	responses chan *rlqsv3.RateLimitQuotaResponse
}

func (p *pipe) Context() context.Context { return p.ctx }

func (p *pipe) Recv() (*rlqsv3.RateLimitQuotaUsageReports, error) {
	select {
	case m := <-p.reports:
		return m, nil
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

func (p *pipe) Send(m *rlqsv3.RateLimitQuotaResponse) error {
	select {
	case p.responses <- m:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// openStream opens a stream to s. ended gets the error of the stream.
func openStream(t *testing.T, s *Service) (p *pipe, closeStream func(), ended chan error) {
	ctx, cancel := context.WithCancel(t.Context())
	p = &pipe{ctx: ctx, reports: make(chan *rlqsv3.RateLimitQuotaUsageReports), responses: make(chan *rlqsv3.RateLimitQuotaResponse, 1)}
	ended = make(chan error, 1)
	go func() {
		ended <- s.StreamRateLimitQuotas(p)
		cancel()
	}()
	return p, cancel, ended
}

var errClosed = errors.New("stream closed")

// link is the stream of a fakeEnvoy to a replica.
type link interface {
	send(m *rlqsv3.RateLimitQuotaUsageReports) error
	receive() (*rlqsv3.RateLimitQuotaResponse, error)
	close()
}

type pipeLink struct {
	*pipe
	closeStream func()
}

func (l *pipeLink) send(m *rlqsv3.RateLimitQuotaUsageReports) error {
	select {
	case l.reports <- m:
		return nil
	case <-l.ctx.Done():
		return errClosed
	}
}

func (l *pipeLink) receive() (*rlqsv3.RateLimitQuotaResponse, error) {
	select {
	case m := <-l.responses:
		return m, nil
	case <-l.ctx.Done():
		return nil, errClosed
	}
}

func (l *pipeLink) close() { l.closeStream() }

// meter compares all admitted requests of a fleet with one token bucket of the limit.
type meter struct {
	mu               sync.Mutex
	rate, burst      float64 // tokens a second, and the most tokens
	level            float64
	lowestLevel      float64
	filledAt         time.Time
	admittedRequests int
}

func newMeter(rate, burst float64) *meter {
	return &meter{rate: rate, burst: burst, level: burst, lowestLevel: burst, filledAt: time.Now()}
}

func (m *meter) admit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.level = min(m.burst, m.level+m.rate*now.Sub(m.filledAt).Seconds()) - 1
	m.filledAt = now
	m.lowestLevel = min(m.lowestLevel, m.level)
	m.admittedRequests++
}

// fakeEnvoy has one bucket and follows the rules of Envoy's filter with no_assignment_behavior: deny.
type fakeEnvoy struct {
	id             map[string]string
	domain         string
	reportInterval time.Duration
	meter          *meter

	mu                              sync.Mutex
	demand                          float64 // requests a second
	link                            link
	allowedRequests, deniedRequests uint64
	reportedAt                      time.Time
	blanketRule                     typev3.RateLimitStrategy_BlanketRule
	hasBlanketRule                  bool
	bucket                          *typev3.TokenBucket // nil without an assignment
	tokens                          float64
	filledAt                        time.Time
	expiry                          time.Time
	admittedRequests                int
	responses                       int
}

func newFakeEnvoy(m *meter, demand float64) *fakeEnvoy {
	return &fakeEnvoy{id: map[string]string{"tenant": "acme"}, domain: "shop", reportInterval: 5 * time.Second, meter: m, demand: demand, reportedAt: time.Now()}
}

func (e *fakeEnvoy) setDemand(demand float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.demand = demand
}

// connect opens a stream. The first report of a new Envoy is sent at once; later streams report after the interval.
func (e *fakeEnvoy) connect(l link) {
	e.mu.Lock()
	oldLink := e.link
	e.link = l
	isNew := oldLink == nil
	e.mu.Unlock()
	if oldLink != nil {
		oldLink.close()
	}
	go func() {
		for {
			m, err := l.receive()
			if err != nil {
				return
			}
			e.receive(l, m)
		}
	}()
	if isNew {
		e.report()
	}
}

func (e *fakeEnvoy) receive(l link, m *rlqsv3.RateLimitQuotaResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.link != l {
		return
	}
	for _, action := range m.GetBucketAction() {
		e.responses++
		e.fill()
		if action.GetAbandonAction() != nil {
			e.bucket, e.hasBlanketRule = nil, false
			continue
		}
		assignment := action.GetQuotaAssignmentAction()
		e.expiry = time.Now().Add(assignment.GetAssignmentTimeToLive().AsDuration())
		switch strategy := assignment.GetRateLimitStrategy().GetStrategy().(type) {
		case *typev3.RateLimitStrategy_BlanketRule_:
			e.blanketRule, e.hasBlanketRule, e.bucket = strategy.BlanketRule, true, nil
		case *typev3.RateLimitStrategy_TokenBucket:
			b := strategy.TokenBucket
			if e.bucket == nil {
				e.tokens = float64(b.MaxTokens)
			} else {
				e.tokens *= float64(b.MaxTokens) / float64(e.bucket.MaxTokens)
			}
			e.bucket, e.hasBlanketRule = b, false
		}
	}
}

func (e *fakeEnvoy) fill() {
	now := time.Now()
	if e.bucket != nil {
		rate := float64(e.bucket.TokensPerFill.GetValue()) / e.bucket.FillInterval.AsDuration().Seconds()
		e.tokens = min(float64(e.bucket.MaxTokens), e.tokens+rate*max(now.Sub(e.filledAt).Seconds(), 0))
	}
	e.filledAt = now
	if now.After(e.expiry) {
		e.bucket, e.hasBlanketRule = nil, false
	}
}

func (e *fakeEnvoy) request() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fill()
	isAllowed := e.hasBlanketRule && e.blanketRule == typev3.RateLimitStrategy_ALLOW_ALL
	if e.bucket != nil && e.tokens >= 1 {
		e.tokens--
		isAllowed = true
	}
	if !isAllowed {
		e.deniedRequests++
		return
	}
	e.allowedRequests++
	e.admittedRequests++
	e.meter.admit()
}

func (e *fakeEnvoy) report() {
	e.mu.Lock()
	m := &rlqsv3.RateLimitQuotaUsageReports{Domain: e.domain, BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: &rlqsv3.BucketId{Bucket: e.id}, TimeElapsed: durationpb.New(time.Since(e.reportedAt)),
		NumRequestsAllowed: e.allowedRequests, NumRequestsDenied: e.deniedRequests,
	}}}
	e.allowedRequests, e.deniedRequests, e.reportedAt = 0, 0, time.Now()
	l := e.link
	e.mu.Unlock()
	_ = l.send(m)
}

// run sends requests and reports until ctx is done.
func (e *fakeEnvoy) run(ctx context.Context) {
	const step = 20 * time.Millisecond
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	requestPart, lastTime := 0.0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			e.mu.Lock()
			requestPart += e.demand * now.Sub(lastTime).Seconds()
			isDue := e.link != nil && now.Sub(e.reportedAt) >= e.reportInterval
			e.mu.Unlock()
			lastTime = now
			for ; requestPart >= 1; requestPart-- {
				e.request()
			}
			if isDue {
				e.report()
			}
		}
	}
}

// requireBound fails if all Envoys together have admitted more than the limit, its burst and excess allow.
func requireBound(t *testing.T, m *meter, excess float64) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	require.GreaterOrEqual(t, math.Round(m.lowestLevel*1000)/1000, -1-excess)
}

// measureUse runs the fleet for a time and returns the part of the limit that it admitted.
func (m *meter) measureUse(duration time.Duration) float64 {
	m.mu.Lock()
	admittedBefore := m.admittedRequests
	m.mu.Unlock()
	time.Sleep(duration)
	m.mu.Lock()
	defer m.mu.Unlock()
	return float64(m.admittedRequests-admittedBefore) / (m.rate * duration.Seconds())
}
