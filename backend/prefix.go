package backend

import (
	"context"
	"errors"
	"strings"
)

// KeyPrefix names all counters whose keys start alike.
type KeyPrefix struct {
	// Start is the start of the keys.
	Start string

	// EndsAnywhere reports whether any text may follow Start. Otherwise a key ends after Start,
	// or goes on with a | and further entries.
	EndsAnywhere bool
}

// Matches reports whether the counter of key has the prefix.
func (p KeyPrefix) Matches(key string) bool {
	rest, ok := strings.CutPrefix(key, p.Start)
	return ok && (p.EndsAnywhere || rest == "" || rest[0] == '|')
}

// PrefixReset is the outcome of a reset by prefix.
type PrefixReset struct {
	// Counters is the number of counters with the prefix. It is -1 if the backend keeps no names
	// of counters, so that it can't count them.
	Counters int

	// Unclear is the number of counters whose names are shortened, so that they may have the
	// prefix. They are not reset.
	Unclear int
}

// ErrTooManyCounters is wrapped by the error of a reset that would reset more counters than the
// caller allows. Nothing was reset.
var ErrTooManyCounters = errors.New("too many counters have the prefix")

// ScopePrefixes resets counters by prefix, those of scope global and those of scope instance.
type ScopePrefixes struct{ Global, Instance PrefixResetter }

// ResetPrefix implements PrefixResetter. It counts the counters of scope global.
func (p ScopePrefixes) ResetPrefix(ctx context.Context, prefix KeyPrefix, maxCounters int, dryRun bool) (PrefixReset, error) {
	r, err := p.Global.ResetPrefix(ctx, prefix, maxCounters, dryRun)
	if err == nil {
		_, err = p.Instance.ResetPrefix(ctx, prefix, maxCounters, dryRun)
	}
	return r, err
}

// PrefixResetter resets counters by prefix.
type PrefixResetter interface {
	// ResetPrefix resets all counters with the prefix. If there are more than maxCounters, it
	// resets none. With dryRun it only counts them. If it fails, it may have reset a part.
	ResetPrefix(ctx context.Context, p KeyPrefix, maxCounters int, dryRun bool) (PrefixReset, error)
}
