package heap

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLargerHeapsAreCollectedSooner(t *testing.T) {
	for _, test := range []struct {
		live uint64
		want int
	}{
		{0, 400},
		{1 << 20, 400},
		{8 << 20, 400},
		{16 << 20, 200},
		{64 << 20, 50},
		{1 << 30, 25},
	} {
		assert.Equal(t, test.want, percentFor(test.live, maxGarbage), "%d bytes", test.live)
	}
}

// percent returns GOGC.
func percent() int {
	p := debug.SetGCPercent(100)
	debug.SetGCPercent(p)
	return p
}

func TestLoadRestoresThePercentOfTheUser(t *testing.T) {
	var p pacer
	defer debug.SetGCPercent(debug.SetGCPercent(300))
	first, second := p.load(), p.load()
	assert.Equal(t, 400, percent())
	first()
	assert.Equal(t, 400, percent(), "the second load is running")
	second()
	assert.Equal(t, 300, percent())
	p.load()()
	assert.Equal(t, 300, percent(), "after one more load")
}

func TestLoadFollowsTheLiveHeap(t *testing.T) {
	var p pacer
	defer debug.SetGCPercent(debug.SetGCPercent(300))
	done := p.load()
	limits := make([]byte, loadHeap/2)
	runtime.GC()
	p.applyPercent()
	assert.InDelta(t, 100, percent(), 5, "the heap may grow to loadHeap")
	limits = append(limits, limits...)
	runtime.GC()
	p.applyPercent()
	assert.Equal(t, 25, percent())
	runtime.KeepAlive(limits)
	done()
	assert.Equal(t, 300, percent())
}

func TestBoundAfterLoadSetsThePercentAgain(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	synctest.Test(t, func(t *testing.T) { // the bubble waits for the end of Bound
		var p pacer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		runtime.GC()
		done := p.load()
		done()
		done()
		assert.Equal(t, 100, percent())
		p.bound(ctx)
		assert.Equal(t, 400, percent())
	})
}

func TestEndOfBoundRestoresThePercentOfTheUser(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(300))
	synctest.Test(t, func(t *testing.T) { // the bubble waits for the end of Bound
		var p pacer
		ctx, cancel := context.WithCancel(t.Context())
		p.bound(ctx)
		assert.Equal(t, 400, percent())
		cancel()
		synctest.Wait()
		assert.Equal(t, 300, percent())
	})
}

func TestBoundFollowsTheLiveHeapAlsoAfterLoads(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	synctest.Test(t, func(t *testing.T) { // the bubble waits for the end of Bound
		var p pacer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		runtime.GC()
		p.bound(ctx)
		assert.Equal(t, 400, percent(), "this test needs little memory")
		p.load()()
		assert.Equal(t, 400, percent())
	})
}
