package overrides

import "sync"

// maxPendingBytes bounds the resets that are pending.
const maxPendingBytes = 1 << 20

// pending collects what messages ask of Run. Adding to it never blocks.
type pending struct {
	ready chan struct{} // has an element if there is something to take

	mu    sync.Mutex
	bytes int // of resets
	work
}

// work is what Run has to do.
type work struct {
	read         bool     // read all overrides
	resets       []string // counters that were reset
	missedResets bool     // other counters may have been reset
}

func newPending() *pending { return &pending{ready: make(chan struct{}, 1)} }

func (p *pending) addRead() { p.add(func() { p.read = true }) }

// addMissed is for a time without subscription.
func (p *pending) addMissed() { p.add(func() { p.read, p.missedResets = true, true }) }

// addReset adds a counter that was reset. If too many are pending, it counts as missed.
func (p *pending) addReset(counter string) {
	p.add(func() {
		const overhead = 64 // memory per reset besides its name
		if p.bytes+len(counter)+overhead > maxPendingBytes {
			p.missedResets = true
			return
		}
		p.bytes += len(counter) + overhead
		p.resets = append(p.resets, counter)
	})
}

func (p *pending) add(f func()) {
	p.mu.Lock()
	f()
	p.mu.Unlock()
	select {
	case p.ready <- struct{}{}:
	default: // Run is already notified
	}
}

// take returns the pending work and removes it.
func (p *pending) take() work {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.work
	p.work, p.bytes = work{}, 0
	return w
}
