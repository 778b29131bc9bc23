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
	// maxPercent is GOGC for a small heap. Calls leave much garbage, so fewer collections save CPU time.
	maxPercent = 400

	// minPercent is GOGC for a large heap, which takes long to collect.
	minPercent = 25

	// maxGarbage is the garbage in bytes of a heap between the two.
	maxGarbage = 32 << 20

	// loadHeap is the heap in bytes up to which a load needs few collections. Its garbage is large and short-lived.
	loadHeap = 128 << 20

	// minHeapToFree is the heap from which a load gives memory back to the system, which takes some milliseconds.
	minHeapToFree = 64 << 20

	// interval is the time between two measurements. A few large calls can let the heap grow by 200 MB in half a
	// second.
	interval     = 50 * time.Millisecond
	loadInterval = 10 * time.Millisecond
)

// ProcessBytes returns the memory of the process.
func ProcessBytes() int64 {
	return int64(size("/memory/classes/total:bytes") - size("/memory/classes/heap/released:bytes"))
}

// pacer sets GOGC.
type pacer struct {
	mu        sync.Mutex // guards the fields below
	followers int        // while there are any, GOGC follows the live heap
	loads     int        // running; each is a follower
	percent   int        // GOGC, while there are followers
	original  int        // GOGC before the first follower
}

var processPacer pacer

// Bound lets GOGC follow the live heap until ctx is done: 400 for a small heap, less for a large one.
func Bound(ctx context.Context) { processPacer.bound(ctx) }

// BeginLoad lets the heap grow to loadHeap until done is called, which gives the memory of the garbage back.
func BeginLoad() (done func()) { return processPacer.load() }

func (p *pacer) bound(ctx context.Context) { context.AfterFunc(ctx, p.follow(interval, 0)) }

func (p *pacer) load() (done func()) {
	stop := p.follow(loadInterval, 1)
	return sync.OnceFunc(func() {
		if size("/memory/classes/heap/objects:bytes")+size("/memory/classes/heap/free:bytes") > minHeapToFree {
			debug.FreeOSMemory()
		}
		stop()
	})
}

// follow lets GOGC follow the live heap until stop is called. loads is 1 for a load, else 0.
func (p *pacer) follow(every time.Duration, loads int) (stop func()) {
	p.change(1, loads)
	ctx, cancel := context.WithCancel(context.Background())
	var follower sync.WaitGroup
	follower.Go(func() {
		for wait.Sleep(ctx, every) {
			p.applyPercent()
		}
	})
	return func() {
		cancel()
		follower.Wait()
		p.change(-1, -loads)
	}
}

// change adds to followers and loads. After the last one, GOGC has its original value.
func (p *pacer) change(followers, loads int) {
	p.mu.Lock()
	if p.followers == 0 {
		p.original, p.percent = debug.SetGCPercent(maxPercent), maxPercent
	}
	p.followers += followers
	p.loads += loads
	if p.followers == 0 {
		debug.SetGCPercent(p.original)
	}
	p.mu.Unlock()
	if followers > 0 {
		p.applyPercent()
	}
}

func (p *pacer) applyPercent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := size("/gc/heap/live:bytes")
	percent := percentFor(live, maxGarbage)
	if p.loads > 0 {
		percent = max(percent, percentFor(live, loadHeap-int64(live)))
	}
	if percent != p.percent { // a new GOGC stops all calls for a moment
		debug.SetGCPercent(percent)
		p.percent = percent
	}
}

// percentFor returns GOGC for a live heap of that many bytes and as much garbage.
func percentFor(live uint64, garbage int64) int {
	return int(min(max(garbage*100/max(int64(live), 1), minPercent), maxPercent))
}

func size(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
