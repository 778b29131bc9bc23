package scope

import (
	"context"

	"github.com/seed-81f232ab/rls/backend"
)

// Prefixes resets counters by prefix, those of scope global and those of scope instance.
type Prefixes struct{ Global, Instance backend.PrefixResetter }

// ResetPrefix implements backend.PrefixResetter. It counts the counters of scope global.
func (p Prefixes) ResetPrefix(ctx context.Context, prefix backend.KeyPrefix, maxCounters int, dryRun bool) (backend.PrefixReset, error) {
	r, err := p.Global.ResetPrefix(ctx, prefix, maxCounters, dryRun)
	if err == nil {
		_, err = p.Instance.ResetPrefix(ctx, prefix, maxCounters, dryRun)
	}
	return r, err
}
