package redis

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// Parts is how many parts of the whole can fail apart from each other: the
// partitions of the main Redis and, if there is one, of that for limits per second.
func (l *Limiter) Parts() int {
	n := 0
	for _, p := range l.pools() {
		n += len(p.lanes)
	}
	return n
}

// Part is the part that decides h, from 0.
func (l *Limiter) Part(h *backend.Hit) int {
	p := l.poolOf(h.Limit)
	part := p.partition(h.Key)
	if p != l.main {
		part += len(l.main.lanes)
	}
	return part
}

// probeKey is the counter that Probe charges, in each partition.
const probeKey = "rls:probe"

// Probe charges a counter of no other use in a part: nil if Redis did so within
// the timeout.
func (l *Limiter) Probe(ctx context.Context, part int) error {
	p := l.main
	if part >= len(p.lanes) {
		p, part = l.perSecond, part-len(p.lanes)
	}
	now := time.Now()
	r := l.request(now, now.Add(l.options.Timeout))
	h := backend.Probe(probeKey)
	r.addTo(p, part, l, 0, &h, h.N)
	r.send()
	if err := r.wait(ctx, l); err != nil {
		return err
	}
	err := r.calls[0].answers[0].Err
	l.recycle(r)
	return err
}
