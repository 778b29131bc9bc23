//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// quotaMeter is an upstream that compares all its requests with one token bucket.
type quotaMeter struct {
	mu                       sync.Mutex
	rate, burst              float64
	level, lowestLevel       float64
	filledAt                 time.Time
	requests, requestsBefore int
	since                    time.Time
}

func (m *quotaMeter) ServeHTTP(http.ResponseWriter, *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.level = min(m.burst, m.level+m.rate*now.Sub(m.filledAt).Seconds()) - 1
	m.filledAt, m.lowestLevel = now, min(m.lowestLevel, m.level)
	m.requests++
}

// use returns the part of the limit that passed since the last call, and the requests beyond one token bucket since the
// start of the test.
func (m *quotaMeter) use() (use, excess float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	use = float64(m.requests-m.requestsBefore) / (m.rate * now.Sub(m.since).Seconds())
	m.requestsBefore, m.since = m.requests, now
	return use, max(-m.lowestLevel, 0)
}

// demand sends requests to an Envoy at a rate that can change.
type demand struct {
	rate atomic.Int64 // requests a second
}

func (d *demand) run(t *testing.T, e *envoy, c call) {
	done := make(chan struct{})
	var goroutines sync.WaitGroup
	slots := make(chan struct{}, 16)
	goroutines.Go(func() {
		waiting, lastTime := 0.0, time.Now()
		for {
			select {
			case <-done:
				return
			case now := <-time.After(10 * time.Millisecond):
				waiting = min(waiting+float64(d.rate.Load())*now.Sub(lastTime).Seconds(), 100)
				lastTime = now
			}
			for ; waiting >= 1; waiting-- {
				select {
				case slots <- struct{}{}:
					goroutines.Go(func() {
						_, _ = e.trySend(c) // a killed Envoy does not answer
						<-slots
					})
				default: // the machine is too slow
				}
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		goroutines.Wait()
	})
}

// TestEnvoysShareOneLimitWithoutACallPerRequest runs examples/quota on three Envoys and two replicas. It prints the table of
// docs/lab/quota.md. Only with RLS_TEST_FULL=1, the phases are long enough for the Envoys to get their shares again, and the test
// checks how much of the limit they use.
func TestEnvoysShareOneLimitWithoutACallPerRequest(t *testing.T) {
	redis, limits := redistest.Start(t), filepath.Join(root, "examples", "quota", "limits.yaml")
	replicas := []*rls{startRLS(t, limits, "REDIS_URL="+redis.Addr), startRLS(t, limits, "REDIS_URL="+redis.Addr)}
	time.Sleep(17 * time.Second) // until then, no share grows, because the empty Redis may have lost shares
	meter := &quotaMeter{rate: 100, burst: 100, level: 100, lowestLevel: 100, filledAt: time.Now(), since: time.Now()}
	upstream := httptest.NewServer(meter)
	t.Cleanup(upstream.Close)
	var envoys []*envoy
	var demands [3]demand
	setDemands := func(rates ...int64) {
		for i, rate := range rates {
			demands[i].rate.Store(rate)
		}
	}
	for i := range demands {
		config := bootstrap(t, "quota/envoy.yaml", replicas...)
		config.setEndpoints("echo", upstream.Listener.Addr().String())
		envoys = append(envoys, config.start())
		demands[i].run(t, envoys[i], call{"/", "x-tenant: acme"})
	}
	pause, isFull := 5*time.Second, os.Getenv("RLS_TEST_FULL") != ""
	if isFull {
		pause = 15 * time.Second
	}
	fmt.Println("| event | requests a second at the Envoys | used in the first 30 s | used in the next 15 s | beyond the bound |")
	fmt.Println("|---|---|---|---|---|")
	for _, phase := range []struct {
		name     string
		act      func()
		leastUse float64
	}{
		{"start", func() { setDemands(150, 30, 5) }, 0.8},
		{"the demand swaps", func() { setDemands(5, 30, 150) }, 0.8},
		{"kill -9 of a replica", func() { replicas[0].kill() }, 0.8},
		{"kill -9 of an Envoy", func() { envoys[0].kill(); setDemands(0, 120, 60) }, 0.8},
		{"kill -9 of Redis, and a restart without data", func() { redis.Kill(); redis.Restart(t) }, 0.8},
		{"FLUSHALL, and the demand swaps", func() {
			require.NoError(t, redis.Client(t).FlushAll(t.Context()).Err())
			setDemands(0, 20, 150)
		}, 0.8},
	} {
		phase.act()
		meter.use()
		time.Sleep(2 * pause)
		earlyUse, _ := meter.use()
		time.Sleep(pause)
		use, excess := meter.use()
		fmt.Printf("| %s | %d, %d, %d | %.1f %% | %.1f %% | %.0f |\n", phase.name, demands[0].rate.Load(), demands[1].rate.Load(), demands[2].rate.Load(), 100*earlyUse, 100*use, excess)
		if isFull {
			assert.GreaterOrEqual(t, use, phase.leastUse, phase.name)
		}
		// A request needs a moment from Envoy to the upstream, so some requests can arrive together.
		assert.LessOrEqual(t, excess, 5.0, phase.name)
	}
}
