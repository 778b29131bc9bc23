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
	// maxPercent is GOGC for a small heap. Calls leave much garbage, so less frequent
	// collections save CPU time in each call.
	maxPercent = 400

	// minPercent is GOGC for a large heap, which takes long to collect.
	minPercent = 25

	// maxGarbage is the garbage in bytes that is allowed for a heap whose GOGC is between minPercent
	// and maxPercent.
	maxGarbage = 32 << 20

	// loadHeap is the heap in bytes up to which a load needs few collections. The trees of a large file
	// are garbage soon. Each collection of this garbage also marks all rules, and calls help to mark.
	loadHeap = 128 << 20

	// minHeapToFree is the size of the heap from which memory is given back to the system after a
	// load. Giving it back takes some milliseconds.
	minHeapToFree = 64 << 20

	// interval is the time between two measurements of the heap. A few large calls can let the heap grow by 200 MB
	// in half a second. loadInterval is shorter, because the heap grows faster during a load.
	interval     = 50 * time.Millisecond
	loadInterval = 10 * time.Millisecond
)

// pacer sets GOGC.
type pacer struct {
	mu        sync.Mutex // guards the fields below
	followers int        // while there are any, GOGC follows the live heap
	loads     int        // running; each is a follower
	percent   int        // GOGC, while there are followers
	original  int        // GOGC before the first follower
}

var processPacer pacer

// Bound lets GOGC follow the live heap until ctx is done: 400 for a small heap, less for a
// large heap. Then GOGC gets its original value again.
func Bound(ctx context.Context) { processPacer.bound(ctx) }

// BeginLoad lets GOGC follow the live heap closely until done is called, so the heap can grow to
// loadHeap. Then it gives the memory of the garbage back to the system.
func BeginLoad() (done func()) { return processPacer.load() }

func (p *pacer) bound(ctx context.Context) {
	p.change(1, 0)
	go func() {
		for wait.Sleep(ctx, interval) {
			p.applyPercent()
		}
		p.change(-1, 0)
	}()
}

func (p *pacer) load() (done func()) {
	p.change(1, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var follower sync.WaitGroup
	follower.Go(func() {
		for wait.Sleep(ctx, loadInterval) {
			p.applyPercent()
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		follower.Wait()
		if size("/memory/classes/heap/objects:bytes")+size("/memory/classes/heap/free:bytes") > minHeapToFree {
			debug.FreeOSMemory()
		}
		p.change(-1, -1)
	})
}

// change adds to the numbers of followers and loads. The first follower makes GOGC follow the live heap. After
// the last one, GOGC has its original value.
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

// applyPercent sets GOGC for the size of the live heap.
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

// size returns a metric of the runtime in bytes.
func size(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
