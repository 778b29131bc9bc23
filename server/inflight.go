package server

import (
	"math/rand/v2"
	"sync/atomic"
)

// inflightStripes is the number of parts of an inflight. It is a power of 2.
const inflightStripes = 16

// inflight counts calls in flight. Its parts are in different cache lines, so that calls on
// different processors rarely wait for each other.
type inflight [inflightStripes]struct {
	calls atomic.Int64
	_     [56]byte // the rest of a cache line
}

// begin counts a call. The caller must call end with the returned part.
func (f *inflight) begin() (part uint32) {
	part = rand.Uint32() % inflightStripes
	f[part].calls.Add(1)
	return part
}

// end ends a call that began in part.
func (f *inflight) end(part uint32) { f[part].calls.Add(-1) }

// count returns the number of calls in flight.
func (f *inflight) count() int64 {
	var n int64
	for i := range f {
		n += f[i].calls.Load()
	}
	return n
}
