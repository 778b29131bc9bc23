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

// currentPercent returns GOGC.
func currentPercent() int {
	p := debug.SetGCPercent(100)
	debug.SetGCPercent(p)
	return p
}

func TestEndOfLoadRestoresGOGCOfTheUser(t *testing.T) {
	var tuner gcTuner
	defer debug.SetGCPercent(debug.SetGCPercent(300))
	endFirst, endSecond := tuner.beginLoad(), tuner.beginLoad()
	assert.Equal(t, 400, currentPercent())
	endFirst()
	assert.Equal(t, 400, currentPercent(), "the second load is running")
	endSecond()
	assert.Equal(t, 300, currentPercent())
	tuner.beginLoad()()
	assert.Equal(t, 300, currentPercent(), "after one more load")
}

func TestLoadAdaptsGOGCToTheLiveHeap(t *testing.T) {
	var tuner gcTuner
	defer debug.SetGCPercent(debug.SetGCPercent(300))
	done := tuner.beginLoad()
	limits := make([]byte, maxLoadHeap/2)
	runtime.GC()
	tuner.applyPercent()
	assert.InDelta(t, 100, currentPercent(), 5, "the heap may grow to maxLoadHeap")
	limits = append(limits, limits...)
	runtime.GC()
	tuner.applyPercent()
	assert.Equal(t, 25, currentPercent())
	runtime.KeepAlive(limits)
	done()
	assert.Equal(t, 300, currentPercent())
}

func TestBoundAfterLoadSetsGOGCAgain(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	synctest.Test(t, func(t *testing.T) { // the bubble waits for the end of Bound
		var tuner gcTuner
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		runtime.GC()
		done := tuner.beginLoad()
		done()
		done()
		assert.Equal(t, 100, currentPercent())
		tuner.bound(ctx)
		assert.Equal(t, 400, currentPercent())
	})
}

func TestEndOfBoundRestoresGOGCOfTheUser(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(300))
	synctest.Test(t, func(t *testing.T) { // the bubble waits for the end of Bound
		var tuner gcTuner
		ctx, cancel := context.WithCancel(t.Context())
		tuner.bound(ctx)
		assert.Equal(t, 400, currentPercent())
		cancel()
		synctest.Wait()
		assert.Equal(t, 300, currentPercent())
	})
}

func TestLoadDuringBoundKeepsGOGCOfBound(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	synctest.Test(t, func(t *testing.T) { // the bubble waits for the end of Bound
		var tuner gcTuner
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		runtime.GC()
		tuner.bound(ctx)
		assert.Equal(t, 400, currentPercent(), "this test needs little memory")
		tuner.beginLoad()()
		assert.Equal(t, 400, currentPercent())
	})
}
