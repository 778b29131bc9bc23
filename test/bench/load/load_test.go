package load

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// recorder is a server that counts the hits of each value. It admits the first hit of a value.
type recorder struct {
	rlsv3.UnimplementedRateLimitServiceServer

	mu   sync.Mutex
	hits map[string]int
}

func (r *recorder) ShouldRateLimit(_ context.Context, request *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	code := rlsv3.RateLimitResponse_OK
	for _, d := range request.Descriptors {
		if len(d.Entries) < 2 {
			continue // the call of Ready
		}
		value := d.Entries[1].Value
		if r.hits[value]++; r.hits[value] > 1 {
			code = rlsv3.RateLimitResponse_OVER_LIMIT
		}
	}
	return &rlsv3.RateLimitResponse{OverallCode: code}, nil
}

func startRecorder(t *testing.T) (*recorder, *Client) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &recorder{hits: map[string]int{}}
	server := grpc.NewServer()
	rlsv3.RegisterRateLimitServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client, err := Dial(listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(client.Close)
	require.NoError(t, client.Ready(t.Context()))
	return r, client
}

func TestFillHitsEachKeyOnce(t *testing.T) {
	for _, load := range []curves.Load{
		{Descriptors: 1, Keys: 1234},
		{Descriptors: 4, Keys: 300},
		{Descriptors: 100, Keys: 1000},
	} {
		r, client := startRecorder(t)
		require.NoError(t, client.Fill(load))
		want := load.Keys * load.Descriptors
		if load.Descriptors >= 10 {
			want = load.Keys
		}
		assert.Len(t, r.hits, want)
		for value, n := range r.hits {
			require.Equal(t, 1, n, value)
		}
	}
}

func TestOpenLoopSendsEachDueCall(t *testing.T) {
	r, client := startRecorder(t)
	times, err := client.Send(curves.Load{Rate: 500, Descriptors: 1, Keys: 50}, 200*time.Millisecond)
	require.NoError(t, err)
	assert.Len(t, times, 100)
	assert.Len(t, r.hits, 50)
	for value, n := range r.hits {
		assert.Equal(t, 2, n, value)
	}
}

func TestClosedLoopReturnsTimeOfEachCall(t *testing.T) {
	r, client := startRecorder(t)
	times, err := client.Send(curves.Load{InFlight: 3, Descriptors: 2, Keys: 10}, 50*time.Millisecond)
	require.NoError(t, err)
	sum := 0
	for _, n := range r.hits {
		sum += n
	}
	assert.Equal(t, 2*len(times), sum)
}

func TestDemandReturnsAdmittedCalls(t *testing.T) {
	_, client := startRecorder(t)
	now := time.Now()
	admitted, err := Demand([]*Client{client, client}, "", "a", 1000, now, now.Add(20*time.Millisecond))
	require.NoError(t, err)
	assert.Len(t, admitted, 1)
}

func TestMostInSpanIgnoresDecisionsThatMayLieOutside(t *testing.T) {
	admissionsAt := func(millis ...int) (admissions []Admission) {
		for _, ms := range millis {
			start := time.UnixMilli(int64(ms))
			admissions = append(admissions, Admission{start, start.Add(10 * time.Millisecond)})
		}
		return admissions
	}
	assert.Zero(t, MostInSpan(nil, time.Second))
	assert.Equal(t, 3, MostInSpan(admissionsAt(0, 500, 990, 2000), time.Second))
	assert.Equal(t, 2, MostInSpan(admissionsAt(0, 500, 991, 2000), time.Second), "the third decision can lie after the span")
}
