// Package heap bounds the garbage that waits for the garbage collector.
package heap

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

const (
	// maxPercent is GOGC for a small heap. A collection then starts when the garbage is four times as large as the live
	// heap. Calls leave much garbage, so fewer collections save CPU time.
	maxPercent = 400

	// minPercent is GOGC for a large heap. A smaller GOGC would cause more collections, and each collection of a large heap
	// takes long.
	minPercent = 25

	// maxGarbage is the garbage, in bytes, that may wait for a collection while GOGC is between minPercent and maxPercent.
	maxGarbage = 32 << 20

	// maxLoadHeap is the size in bytes to which the heap may grow during a load. A load makes much garbage.
	maxLoadHeap = 128 << 20

	// If the heap is larger than minHeapToFree bytes when a load ends, the load returns memory to the system. Smaller heaps
	// are not worth the milliseconds that the return takes.
	minHeapToFree = 64 << 20

	// interval is the time between two measurements of the heap. It is short, because a few large calls can make the
	// heap grow by 200 MB in half a second. loadInterval is the time between two measurements during a load.
	interval     = 50 * time.Millisecond
	loadInterval = 10 * time.Millisecond
)

// ProcessBytes returns the memory of the process.
func ProcessBytes() int64 {
	return int64(readMetric("/memory/classes/total:bytes") - readMetric("/memory/classes/heap/released:bytes"))
}

type gcTuner struct {
	mu              sync.Mutex // guards the fields below
	goroutines      int        // the number of goroutines that adapt GOGC to the live heap
	loads           int        // the number of loads that are running; each load has a goroutine
	currentPercent  int        // GOGC as long as goroutines is not 0
	originalPercent int        // GOGC before the first goroutine; the gcTuner restores it after the last goroutine
}

var processTuner gcTuner

// Bound adapts GOGC to the live heap until ctx is done: 400 % for a small heap, down to 25 % for a large heap.
func Bound(ctx context.Context) { processTuner.bound(ctx) }

// BeginLoad lets the heap grow to maxLoadHeap while a set of limits is loaded. The caller must call done after the
// load. done returns the memory of the garbage to the system.
func BeginLoad() (done func()) { return processTuner.beginLoad() }

func (p *gcTuner) bound(ctx context.Context) { context.AfterFunc(ctx, p.start(interval, 0)) }

func (p *gcTuner) beginLoad() (done func()) {
	stop := p.start(loadInterval, 1)
	return sync.OnceFunc(func() {
		if readMetric("/memory/classes/heap/objects:bytes")+readMetric("/memory/classes/heap/free:bytes") > minHeapToFree {
			debug.FreeOSMemory()
		}
		stop()
	})
}

// start adapts GOGC to the live heap until stop is called. loads is 1 for a load, otherwise 0.
func (p *gcTuner) start(interval time.Duration, loads int) (stop func()) {
	p.addGoroutines(1, loads)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for wait.Sleep(ctx, interval) {
			p.applyPercent()
		}
	})
	return func() {
		cancel()
		wg.Wait()
		p.addGoroutines(-1, -loads)
	}
}

// addGoroutines changes p.goroutines and p.loads. If no goroutine is left, it restores the original GOGC.
func (p *gcTuner) addGoroutines(goroutines, loads int) {
	p.mu.Lock()
	if p.goroutines == 0 {
		p.originalPercent, p.currentPercent = debug.SetGCPercent(maxPercent), maxPercent
	}
	p.goroutines += goroutines
	p.loads += loads
	if p.goroutines == 0 {
		debug.SetGCPercent(p.originalPercent)
	}
	p.mu.Unlock()
	if goroutines > 0 {
		p.applyPercent()
	}
}

func (p *gcTuner) applyPercent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	liveBytes := readMetric("/gc/heap/live:bytes")
	percent := percentFor(liveBytes, maxGarbage)
	if p.loads > 0 {
		percent = max(percent, percentFor(liveBytes, maxLoadHeap-int64(liveBytes)))
	}
	if percent != p.currentPercent { // a new GOGC stops all calls for a moment
		debug.SetGCPercent(percent)
		p.currentPercent = percent
	}
}

// percentFor returns the GOGC with which garbage can grow to garbageBytes beside liveBytes.
func percentFor(liveBytes uint64, garbageBytes int64) int {
	return int(min(max(garbageBytes*100/max(int64(liveBytes), 1), minPercent), maxPercent))
}

// readMetric returns the size in bytes that package runtime/metrics has under name.
func readMetric(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
