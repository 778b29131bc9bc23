package service

import (
	"context"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

const (
	codeOK        = rlsv3.RateLimitResponse_OK
	codeOverLimit = rlsv3.RateLimitResponse_OVER_LIMIT
)

// fixture is a Service with local counters and a clock that stands still.
type fixture struct {
	t   *testing.T
	svc *Service
	now time.Time
}

// start is the time of a new fixture, 37.5 seconds into a minute.
var start = time.Date(2026, 11, 20, 10, 0, 37, 500_000_000, time.UTC)

func newFixture(t *testing.T, limits string, change ...func(*Options)) *fixture {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	require.NoError(t, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	f := &fixture{t: t, now: start}
	o := Options{Limits: store, Limiter: local.New(local.Options{MaxKeys: 1000}), Now: func() time.Time { return f.now }}
	for _, changeOptions := range change {
		changeOptions(&o)
	}
	f.svc = New(o)
	return f
}

// request sends descriptors of domain "d".
func (f *fixture) request(ds ...*ratelimitv3.RateLimitDescriptor) *rlsv3.RateLimitResponse {
	f.t.Helper()
	return f.send(&rlsv3.RateLimitRequest{Domain: "d", Descriptors: ds})
}

func (f *fixture) send(req *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
	f.t.Helper()
	resp, err := f.svc.ShouldRateLimit(context.Background(), req)
	require.NoError(f.t, err)
	require.Len(f.t, resp.Statuses, len(req.Descriptors))
	return resp
}

// desc returns a descriptor of "key=value" entries.
func desc(entries ...string) *ratelimitv3.RateLimitDescriptor {
	d := &ratelimitv3.RateLimitDescriptor{}
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// withHits sets the hits_addend of d.
func withHits(n uint64, d *ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

// withRefund makes d a refund of n hits.
func withRefund(n uint64, d *ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitDescriptor {
	d.IsNegativeHits = true
	return withHits(n, d)
}

// repeat returns a list that has d n times.
func repeat(n int, d *ratelimitv3.RateLimitDescriptor) []*ratelimitv3.RateLimitDescriptor {
	ds := make([]*ratelimitv3.RateLimitDescriptor, n)
	for i := range ds {
		ds[i] = d
	}
	return ds
}

func statusCodes(resp *rlsv3.RateLimitResponse) []rlsv3.RateLimitResponse_Code {
	var statuses []rlsv3.RateLimitResponse_Code
	for _, st := range resp.Statuses {
		statuses = append(statuses, st.Code)
	}
	return statuses
}
