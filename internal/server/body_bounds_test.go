package server

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// startRequests starts n requests of an address. admitted is the number of requests whose turn comes at once. The other
// requests wait. end ends all n requests.
func startRequests(t *testing.T, bounds *answerBounds, n int, address string, bodyBytes int) (admitted int64, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var turnCount atomic.Int64
	for range n {
		go func() {
			release, err := bounds.acquire(ctx, address, bodyBytes)
			if err != nil {
				return
			}
			turnCount.Add(1)
			<-ctx.Done()
			release()
		}()
	}
	synctest.Wait()
	return turnCount.Load(), cancel
}

func TestRequestsWaitBeyondBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bounds := newAnswerBounds()
		const bodyBytes = 4096 - requestOverhead
		admitted, endFirst := startRequests(t, bounds, 50, "10.0.0.1", bodyBytes)
		assert.EqualValues(t, 8, admitted, "32 KiB have room for 8 requests of 4 KiB")
		admitted, endSecond := startRequests(t, bounds, 1, "10.0.0.2", 1<<20)
		assert.EqualValues(t, 1, admitted, "a body above the bound counts as a body of the bound")
		admitted, endThird := startRequests(t, bounds, 1, "10.0.0.3", 0)
		assert.Zero(t, admitted, "the bodies of the other addresses fill the bound of all addresses")

		endThird()
		endSecond()
		synctest.Wait()
		admitted, endFourth := startRequests(t, bounds, 1, "10.0.0.4", 0)
		assert.EqualValues(t, 1, admitted, "the waiting requests of another address do not delay this request")
		endFourth()
		endFirst()
		synctest.Wait()
		assert.Empty(t, bounds.peers)
		admitted, endLast := startRequests(t, bounds, 50, "10.0.0.1", bodyBytes)
		assert.EqualValues(t, 8, admitted, "the requests that have ended take no room")
		endLast()
	})
}

func TestWaitingRequestEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bounds := newAnswerBounds()
		_, err := bounds.acquire(t.Context(), "10.0.0.1", 1<<20)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = bounds.acquire(ctx, "10.0.0.1", 0)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// slowCheck answers after release is closed.
type slowCheck struct {
	running atomic.Int64
	release chan struct{}
}

func (c *slowCheck) ServeBody(w http.ResponseWriter, _ *http.Request, _ []byte) {
	c.running.Add(1)
	<-c.release
	w.WriteHeader(http.StatusOK)
}

func (*slowCheck) Refuse(w http.ResponseWriter, code int, _ string) { w.WriteHeader(code) }

func TestBatchesInFlightAreBounded(t *testing.T) {
	t.Parallel()
	check := &slowCheck{release: make(chan struct{})}
	server := start(t, Options{Services: servicesOf(alwaysOK), JSON: alwaysOK, Check: check})
	const batches, maxRunning = 40, 8
	codes := make(chan int, batches)
	for range batches {
		go func() {
			code := 0
			resp, err := http.Post("http://"+server.HTTPAddr().String()+"/v1/check", "application/json", strings.NewReader(strings.Repeat("x", 4096-requestOverhead)))
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				code = resp.StatusCode
			}
			codes <- code
		}()
	}
	polltest.Until(t, maxWait, func() bool { return server.calls.inFlight.Load() == batches })
	polltest.Until(t, maxWait, func() bool { return check.running.Load() == maxRunning })
	assert.EqualValues(t, maxRunning, check.running.Load(), "the other batches wait")
	close(check.release)
	for range batches {
		assert.Equal(t, http.StatusOK, <-codes, "all batches get their turn")
	}
}

// stuckWriter is the connection of a client that does not read.
type stuckWriter struct {
	http.ResponseWriter
	stop chan struct{}
}

func (w *stuckWriter) Write([]byte) (int, error) {
	<-w.stop
	return 0, io.ErrClosedPipe
}

func TestAnswerThatIsNotReadDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bounds := newAnswerBounds()
		release, err := bounds.acquire(t.Context(), "10.0.0.1", 1<<20)
		require.NoError(t, err)
		stuckClient := &stuckWriter{stop: make(chan struct{})}
		defer close(stuckClient.stop)
		answer := &releasingWriter{ResponseWriter: stuckClient, release: sync.OnceFunc(release)}
		go func() { _, _ = answer.Write([]byte("{}")) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		release, err = bounds.acquire(ctx, "10.0.0.1", 1<<20)
		require.NoError(t, err)
		release()
	})
}
