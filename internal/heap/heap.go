// Package heap bounds the garbage that waits for the garbage collector.
package heap

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
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

	// minHeapToFree is the size of the heap from which memory is given back to the system after a
	// load. Giving it back takes some milliseconds.
	minHeapToFree = 64 << 20

	// interval is the time between two measurements of the heap. loadInterval is shorter, because
	// the heap grows fast during a load.
	interval     = time.Second
	loadInterval = 10 * time.Millisecond
)

// pacer sets GOGC.
type pacer struct {
	mu       sync.Mutex
	loads    int  // running
	percent  int  // GOGC, if the pacer has set it
	original int  // GOGC before the loads that are running
	bounded  bool // GOGC follows the live heap also between loads
}

var processPacer pacer

// Bound lets GOGC follow the live heap until ctx is done: 400 for a small heap, less for a
// large heap.
func Bound(ctx context.Context) { processPacer.bound(ctx) }

// BeginLoad lets GOGC follow the live heap closely until done is called. Then it gives the memory of
// the garbage back to the system.
func BeginLoad() (done func()) { return processPacer.load() }

func (p *pacer) bound(ctx context.Context) {
	p.changeAndApply(func() { p.bounded = true })
	go p.follow(ctx, interval)
}

// follow sets GOGC in each interval until ctx is done.
func (p *pacer) follow(ctx context.Context, interval time.Duration) {
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			p.applyPercent()
		}
	}
}

func (p *pacer) load() (done func()) {
	p.changeAndApply(func() {
		if p.loads++; p.loads == 1 && !p.bounded {
			p.percent = 0
			p.original = debug.SetGCPercent(maxPercent)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	var follower sync.WaitGroup
	follower.Go(func() { p.follow(ctx, loadInterval) })
	return sync.OnceFunc(func() {
		cancel()
		follower.Wait()
		if size("/memory/classes/heap/objects:bytes")+size("/memory/classes/heap/free:bytes") > minHeapToFree {
			debug.FreeOSMemory()
		}
		p.changeAndApply(func() {
			if p.loads--; p.loads == 0 && !p.bounded {
				debug.SetGCPercent(p.original)
				p.percent = 0
			}
		})
	})
}

// applyPercent sets GOGC if it follows the live heap.
func (p *pacer) applyPercent() { p.changeAndApply(func() {}) }

// changeAndApply changes p, and then sets GOGC if it follows the live heap.
func (p *pacer) changeAndApply(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	if !p.bounded && p.loads == 0 {
		return
	}
	percent := percentFor(size("/gc/heap/live:bytes"))
	if percent != p.percent { // a new GOGC stops all calls for a moment
		debug.SetGCPercent(percent)
		p.percent = percent
	}
}

// percentFor returns GOGC for a live heap of that many bytes.
func percentFor(live uint64) int {
	return int(min(max(maxGarbage*100/max(live, 1), minPercent), maxPercent))
}

// size returns a metric of the runtime in bytes.
func size(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
