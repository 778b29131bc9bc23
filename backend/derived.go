package backend

import (
	"sync"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/limit"
)

// Derived remembers which limits were made of others. Limits that requests bring
// along are new each time, so it forgets all when there are too many. It is safe for
// concurrent use.
type Derived struct {
	derive func(*limit.Limit) *limit.Limit
	known  sync.Map // *limit.Limit → *limit.Limit
	count  atomic.Int64
}

// maxDerived bounds the limits that a Derived remembers.
const maxDerived = 10_000

// NewDerived returns one that makes limits by derive, which must always make the same
// of the same.
func NewDerived(derive func(*limit.Limit) *limit.Limit) *Derived { return &Derived{derive: derive} }

// Of is what derive makes of l.
func (d *Derived) Of(l *limit.Limit) *limit.Limit {
	if known, ok := d.known.Load(l); ok {
		return known.(*limit.Limit)
	}
	if d.count.Add(1) > maxDerived {
		d.known.Clear()
		d.count.Store(1)
	}
	made := d.derive(l)
	d.known.Store(l, made)
	return made
}
