package overrides

import (
	"slices"
	"sync"
)

// maxInbox bounds what an inbox holds, in bytes.
const maxInbox = 1 << 20

// inbox holds what messages ask for until Run comes to it. It never makes anyone
// wait. Too many changes become a full read; too many resets are missed.
type inbox struct {
	filled chan struct{} // has something when there is something

	mu    sync.Mutex
	bytes int
	messages
}

// messages are what an inbox held.
type messages struct {
	all     bool     // everything is to be read
	targets []string // these are to be read; each once, none if all
	resets  []string
	missed  bool // resets may be missing
}

func newInbox() *inbox { return &inbox{filled: make(chan struct{}, 1)} }

// reload asks for a full read.
func (b *inbox) reload() {
	b.add(func() { b.all, b.targets = true, nil })
}

// changed asks for target.
func (b *inbox) changed(target string) {
	b.add(func() {
		switch {
		case b.all || slices.Contains(b.targets, target):
		case len(target) <= MaxTarget && len(b.targets) < maxTargets:
			b.targets = append(b.targets, target)
		default:
			b.all, b.targets = true, nil
		}
	})
}

// maxTargets are read one by one; for more, a full read is no dearer.
const maxTargets = 128

// miss asks to tell that resets may be missing, and for a full read.
func (b *inbox) miss() {
	b.add(func() { b.all, b.targets, b.missed = true, nil, true })
}

// reset asks to tell of counter.
func (b *inbox) reset(counter string) {
	b.add(func() {
		const overhead = 64 // a short name's share of memory
		if b.bytes+len(counter)+overhead > maxInbox {
			b.missed = true
			return
		}
		b.bytes += len(counter) + overhead
		b.resets = append(b.resets, counter)
	})
}

func (b *inbox) add(f func()) {
	b.mu.Lock()
	f()
	b.mu.Unlock()
	select {
	case b.filled <- struct{}{}:
	default: // Run will come anyway
	}
}

// takeAll empties it.
func (b *inbox) takeAll() messages {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.messages
	b.messages, b.bytes = messages{}, 0
	return m
}
