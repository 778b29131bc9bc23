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

	// maxGarbage bounds the garbage of a heap between these two, in bytes.
	maxGarbage = 32 << 20

	// minFreed is the heap from which a load gives memory back. It takes some milliseconds.
	minFreed = 64 << 20

	// interval is the time between two looks at the heap, and loadInterval the same during a
	// load, which makes the heap grow fast.
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

var process pacer

// Bound lets GOGC follow the live heap until ctx is done: 400 for a small heap, less for a
// large heap.
func Bound(ctx context.Context) { process.bound(ctx) }

// Load lets GOGC follow the live heap closely until done is called. Then it gives the memory of
// the garbage back to the system.
func Load() (done func()) { return process.load() }

func (p *pacer) bound(ctx context.Context) {
	p.set(func() { p.bounded = true })
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
			p.set(func() {})
		}
	}
}

func (p *pacer) load() (done func()) {
	p.set(func() {
		if p.loads++; p.loads == 1 && !p.bounded {
			p.percent = 0
			p.original = debug.SetGCPercent(maxPercent)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { p.follow(ctx, loadInterval) })
	return sync.OnceFunc(func() {
		cancel()
		following.Wait()
		if size("/memory/classes/heap/objects:bytes")+size("/memory/classes/heap/free:bytes") > minFreed {
			debug.FreeOSMemory()
		}
		p.set(func() {
			if p.loads--; p.loads == 0 && !p.bounded {
				debug.SetGCPercent(p.original)
				p.percent = 0
			}
		})
	})
}

// set changes p. If GOGC follows the live heap, it sets GOGC.
func (p *pacer) set(change func()) {
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
