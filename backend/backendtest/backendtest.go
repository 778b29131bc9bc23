// Package backendtest has suites that test any backend.Limiter, and fakes for tests of code
// that uses a Limiter. It is for tests only.
package backendtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Run tests the contract of backend.Limiter: for each key, the Limiter answers as
// limit.Limit.Take does, even with many callers at once.
//
// Take must use its argument now as the current time, and must charge each hit by itself.
// RunAllOrNone tests hits that are charged all or none. Each test calls open, which cleans up with t.Cleanup. Keys are new in every
// run, so tests can share a store.
//
// A store may expire counters in real time. So each test begins at Start, which is in the
// future, its windows last hours, and no test needs a counter in the last seconds of its
// life.
func Run(t *testing.T, open func(t *testing.T) backend.Limiter) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, l backend.Limiter)
	}{
		{"each sequence of hits gets the expected answers", testStories},
		{"a peek at 0 remaining hits is answered as by limit.Take", testPeeksAtTheLimit},
		{"random traces are answered as by limit.Take", testTraces},
		{"a Take of many hits answers each", testManyHits},
		{"a Take of no hits does nothing", testNoHits},
		{"a later hit of a Take sees the charge of an earlier hit", testSameCounterTwice},
		{"keys of any bytes and length have separate counters", testKeys},
		{"an empty key has a counter", testEmptyKey},
		{"the caller can change the bytes of a key after Take", testKeyIsBorrowed},
		{"limits with different tags have separate counters", testTagsApart},
		{"limits with the same tag share a counter", testTagsTogether},
		{"named holds are answered as by limit.TakeHold", testHolds},
		{"a change of algorithm admits at most the old and the new limit", testChangedAlgorithm},
		{"a changed bucket keeps the spent tokens", testChangedBuckets},
		{"a limit that changes often admits at most its largest number", testReloads},
		{"a cancelled call returns", testCancelled},
		{"64 callers of one key are admitted exactly to the limit", testContention},
		{"64 callers with many hits are never admitted beyond the limit", testContentionOfMany},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// WithoutHolds declares that l supports no algorithm with holds. The suites skip these algorithms.
func WithoutHolds(l backend.Limiter) backend.Limiter { return withoutHolds{l} }

type withoutHolds struct{ backend.Limiter }

func supportsHolds(l backend.Limiter) bool {
	_, isDeclared := l.(withoutHolds)
	return !isDeclared
}

// skipWithoutHolds skips a test of holds if l does not support them.
func skipWithoutHolds(t *testing.T, l backend.Limiter) {
	if !supportsHolds(l) {
		t.Skip("the backend declares that it supports no holds")
	}
}

// algorithmsOf returns the algorithms that l supports.
func algorithmsOf(l backend.Limiter) []limit.Algorithm {
	return slices.DeleteFunc(limit.Algorithms(), func(a limit.Algorithm) bool { return a.HasHolds() && !supportsHolds(l) })
}

// Start returns the time at which the tests begin: the next full hour, which is also the
// start of an hourly window.
func Start() time.Time { return time.Now().UTC().Truncate(time.Hour).Add(time.Hour) }

var (
	runID    = newRunID()
	keyCount atomic.Int64 // the number of keys that Key has returned
)

func newRunID() string {
	b := make([]byte, 8)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Key returns a new key. No test has used it, even in earlier runs.
func Key() []byte { return fmt.Appendf(nil, "backendtest/%s/%d/", runID, keyCount.Add(1)) }

// NewLimit is limit.New for valid specs. If the algorithm has holds, each hold lasts as many hours as the
// window of s.
func NewLimit(t require.TestingT, s limit.Spec) *limit.Limit {
	if s.Algorithm.HasHolds() && s.Hold == 0 {
		s.Hold = min(time.Hour.Microseconds()*int64(max(s.Multiplier, 1)), limit.MaxHold)
	}
	l, err := limit.New(s)
	require.NoError(t, err)
	return l
}

var errStale = errors.New("stale result of an earlier Take")

// take calls l.Take at start + elapsed. Before the call, the results have wrong values, which Take must replace.
func take(t require.TestingT, l backend.Limiter, start time.Time, elapsed time.Duration, hits ...backend.Hit) []backend.Result {
	results := make([]backend.Result, len(hits))
	for i := range results {
		results[i].Err = errStale
		results[i].Result = limit.Result{Allowed: i%2 == 0, Remaining: 77, ResetAfter: 77, RetryAfter: 77}
	}
	l.Take(context.Background(), start.Add(elapsed), hits, results)
	for i := range results {
		require.NoError(t, results[i].Err, "hit %d of %d", i+1, len(hits))
	}
	return results
}

// model is a simple Limiter: a map of states. It is for one goroutine.
type model map[string]*limit.State

var _ backend.Limiter = model{}

func (m model) Take(_ context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	for i, h := range hits {
		name := h.Limit.Tag() + " " + string(h.Key)
		if m[name] == nil {
			m[name] = &limit.State{}
		}
		results[i] = backend.Result{Result: h.Limit.TakeHold(m[name], now.UnixMicro(), h.N, h.HoldID)}
	}
}

// takeBoth calls take on l and on m, requires equal answers, and returns them. The sources of
// the answers can differ.
func takeBoth(t require.TestingT, l backend.Limiter, m model, start time.Time, elapsed time.Duration, hits ...backend.Hit) []backend.Result {
	got, want := take(t, l, start, elapsed, hits...), take(t, m, start, elapsed, hits...)
	for i, h := range hits {
		if got[i].Source.IsBackend() {
			want[i].Source = got[i].Source
		}
		want[i].DenialMayEndEarly = got[i].DenialMayEndEarly // DenialMayEndEarly depends on other hits at the same moment
		if got[i].WindowStart != 0 {
			now := start.Add(elapsed).UnixMicro()
			want[i].WindowStart = now - now%h.Limit.Period()
		}
		require.Equal(t, want[i], got[i], "hit %d of %d: at %v, %d hits, %v, charge_denied %v",
			i+1, len(hits), elapsed, h.N, h.Limit, h.Limit.ChargeDenied)
	}
	return got
}

// perHour returns one limit per hour for each algorithm that l supports.
func perHour(t require.TestingT, l backend.Limiter, requests uint32, chargeDenied bool) []*limit.Limit {
	var limits []*limit.Limit
	for _, a := range algorithmsOf(l) {
		limits = append(limits, NewLimit(t, limit.Spec{Algorithm: a, Requests: requests, Unit: limit.Hour, ChargeDenied: chargeDenied}))
	}
	return limits
}

func assertTake(t *testing.T, l backend.Limiter, start time.Time, h backend.Hit, allowed bool, remaining int64) {
	t.Helper()
	r := take(t, l, start, 0, h)[0]
	assert.Equal(t, allowed, r.Allowed, "allowed")
	assert.Equal(t, remaining, r.Remaining, "remaining")
}
