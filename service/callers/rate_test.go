package callers

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var rateStart = time.Date(2026, 11, 20, 10, 0, 37, 0, time.UTC)

func TestCallerIsRefusedBeyondItsRateAndOthersAreNot(t *testing.T) {
	var refusedCallers []string
	b := NewRateBound(10, nodeHeader, func(caller string) { refusedCallers = append(refusedCallers, caller) })
	greedyCaller, otherCaller := callContext("10.0.0.1", nil, "hog"), callContext("10.0.0.1", nil, "victim")
	for i := range 15 {
		err := b.Admit(greedyCaller, rateStart)
		assert.Equal(t, i >= 10, err != nil, "call %d", i)
		if err != nil {
			assert.Equal(t, codes.ResourceExhausted, status.Code(err))
			assert.ErrorContains(t, err, "calls of this caller: got more than 10 in a second, want at most 10 (MAX_CALLER_CALLS_PER_SECOND)")
		}
	}
	assert.Equal(t, slices.Repeat([]string{"10.0.0.1 hog"}, 5), refusedCallers)
	require.NoError(t, b.Admit(otherCaller, rateStart), "another name at the same address")
	require.NoError(t, b.Admit(callContext("10.0.0.1", nil, ""), rateStart), "the same address without a name")

	require.NoError(t, b.Admit(greedyCaller, rateStart.Add(100*time.Millisecond)), "a tenth of a second admits one call")
	require.Error(t, b.Admit(greedyCaller, rateStart.Add(100*time.Millisecond)))
	for range 10 {
		require.NoError(t, b.Admit(greedyCaller, rateStart.Add(time.Minute)), "a pause admits the calls of one second")
	}
	require.Error(t, b.Admit(greedyCaller, rateStart.Add(time.Minute)))
}

func TestManyCallersUseBoundedMemory(t *testing.T) {
	b := NewRateBound(2, nodeHeader, func(string) {})
	countCallers := func() (count int) {
		for i := range b.stripes {
			count += len(b.stripes[i].limiters)
		}
		return count
	}
	for i := range 6_000 {
		require.NoError(t, b.Admit(callContext("10.0.0.1", nil, fmt.Sprint("caller-", i)), rateStart))
	}
	assert.LessOrEqual(t, countCallers(), callerStripes*maxStripeCallers)
	assert.Greater(t, countCallers(), callerStripes*maxStripeCallers/2)

	admitGreedyCaller := func(i int) error {
		return b.Admit(callContext("10.0.0.1", nil, fmt.Sprint("hog-", i)), rateStart.Add(time.Minute))
	}
	for i := range 40 {
		require.NoError(t, admitGreedyCaller(i/2))
	}
	for i := range 1_500 {
		require.NoError(t, b.Admit(callContext("10.0.0.1", nil, fmt.Sprint("new-", i)), rateStart.Add(time.Minute)))
	}
	for i := range 20 {
		require.Error(t, admitGreedyCaller(i), "callers without calls make room, and greedy callers stay")
	}
}

func BenchmarkAdmit(b *testing.B) {
	bound := NewRateBound(1e9, nodeHeader, func(string) {})
	ctx := callContext("10.0.0.1", nil, "front-1")
	b.ReportAllocs()
	for b.Loop() {
		_ = bound.Admit(ctx, rateStart)
	}
}
