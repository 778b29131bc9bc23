package server

import "sync/atomic"

// inflight counts calls.
type inflight struct {
	calls atomic.Int64 // in flight
	begun atomic.Int64 // that ever began
}

// begin counts a call until end is called.
func (f *inflight) begin() {
	f.calls.Add(1)
	f.begun.Add(1)
}

func (f *inflight) end() { f.calls.Add(-1) }
