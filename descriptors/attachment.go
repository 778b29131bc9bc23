package descriptors

import "sync/atomic"

// Attachment keeps a value of an observer with a limit, so that the observer needs no lookup
// in a call. All values have the same type. It is safe for concurrent use.
type Attachment struct{ value atomic.Value }

// Load returns the value, or nil before the first Store.
func (a *Attachment) Load() any { return a.value.Load() }

// Store sets the value, which must not be nil.
func (a *Attachment) Store(value any) { a.value.Store(value) }
