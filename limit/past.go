package limit

import "slices"

// Past is a limit that hits were held to before a reload, by a counter of its own.
type Past struct {
	*Limit

	// Until is the time from which on its counter no longer matters.
	Until int64
}

// maxPast bounds how many changes in a row are remembered.
const maxPast = 8

// After is l in place of old from now on, for the same hits: l's Past begins with
// old. A backend sees to it that a counter of l has then spent no less than those of
// l's Past, as far as l's capacity goes, so that a reload admits nothing that neither
// limit would. What is given back are first the hits charged since, then also those
// of the Past; see GivenBack.
//
// A past limit matters as long as its counters remember; if l is of another window, no
// longer than those of l do. What l has learned from others before, it keeps.
func (l *Limit) After(old *Limit, now int64) *Limit {
	matters := old.memory()
	if old.period != l.period {
		matters = min(matters, l.memory())
	}
	c := *l
	c.past = nil
	for _, p := range slices.Concat([]Past{{Limit: old, Until: now + matters}}, old.past, l.past) {
		// A past limit of the same tag has left what it knows in l's own counter. That
		// is enough, unless l is lower: then the time that a token bucket has spent is
		// fewer hits than it was, and a log would keep fewer than still count.
		known := p.tag == l.tag && (p.max <= l.max && p.capacity <= l.capacity ||
			l.Algorithm == FixedWindow || l.Algorithm == SlidingWindow)
		if known || p.Until <= now || len(c.past) == maxPast {
			continue
		}
		// Limits with one counter are one: it may hold what any of them has charged.
		same := slices.IndexFunc(c.past, func(q Past) bool { return q.tag == p.tag })
		if same < 0 {
			p.Limit = p.alone()
			c.past = append(c.past, p)
			continue
		}
		q := &c.past[same]
		q.Until = max(q.Until, p.Until)
		q.Limit = q.orLarger(p.Limit)
	}
	return &c
}

// Past are the limits before l whose counters matter at now, the last one first,
// appended to buf. Those with a counter that is l's too are not among them: what
// it says is known.
func (l *Limit) Past(now int64, buf []Past) []Past {
	for _, p := range l.past {
		if p.Until > now && p.tag != l.tag && p.Scope == l.Scope {
			buf = append(buf, p)
		}
	}
	return buf
}

// HasPast tells whether limits before l matter, or did so some time.
func (l *Limit) HasPast() bool { return len(l.past) > 0 }

// Spent is what a counter that answered r has spent.
func (l *Limit) Spent(r Result) int64 { return l.capacity - r.Remaining }

// GivenBack is how many hits are to be given back to a past counter that has spent
// past, where n < 0 gives back to one that has spent so much: those that can't have
// been charged since.
func GivenBack(n, spent, past int64) int64 {
	return max(-max(n, -MaxHits)-max(spent-past, 0), 0)
}

// Remembers is how many hits l's counter must be able to tell at now: its capacity;
// for a SlidingLog that was lowered, the largest Max whose hits still matter.
func (l *Limit) Remembers(now int64) int64 {
	most := l.capacity
	if l.Algorithm == SlidingLog {
		for _, p := range l.past {
			if p.tag == l.tag && p.Until > now {
				most = max(most, p.max)
			}
		}
	}
	return most
}

// memory is how long after its last hit a counter still matters, in microseconds.
func (l *Limit) memory() int64 {
	switch l.Algorithm {
	case SlidingWindow:
		return 2 * l.period
	case TokenBucket:
		return max(l.period, l.full.ceil())
	}
	return l.period
}

// orLarger is l, with the Max and the capacity of other where these are larger. The
// two have one tag. A token bucket of both has no longer to fill than either.
func (l *Limit) orLarger(other *Limit) *Limit {
	if other.max <= l.max && other.capacity <= l.capacity {
		return l
	}
	s := l.Spec
	s.Requests = max(l.Requests, other.Requests)
	if s.Algorithm == TokenBucket {
		s.Burst = uint32(max(l.capacity, other.capacity))
	}
	larger, err := New(s)
	if err != nil {
		return l
	}
	return larger
}

// alone is l without a past, which would keep all limits that ever were.
func (l *Limit) alone() *Limit {
	if l.past == nil {
		return l
	}
	c := *l
	c.past = nil
	return &c
}
