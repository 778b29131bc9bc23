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
	calls atomic.Uint64 // the calls in flight, and oneBegun times the calls that ever began
	_     [56]byte      // the rest of a cache line
}

// oneBegun counts a call that began.
const oneBegun = 1 << 32

// begin counts a call. The caller must call end with the returned part.
func (f *inflight) begin() (part uint32) {
	part = rand.Uint32() % inflightStripes
	f[part].calls.Add(oneBegun + 1)
	return part
}

// end ends a call that began in part.
func (f *inflight) end(part uint32) { f[part].calls.Add(^uint64(0)) }

// count returns the number of calls in flight.
func (f *inflight) count() int64 {
	var n int64
	for i := range f {
		n += int64(f[i].calls.Load() % oneBegun)
	}
	return n
}

// begun returns the number of calls that ever began, modulo 2^32.
func (f *inflight) begun() (n uint32) {
	for i := range f {
		n += uint32(f[i].calls.Load() / oneBegun)
	}
	return n
}
