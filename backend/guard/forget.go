package guard

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Forget drops what is known of h's counter, as it was reset elsewhere.
func (l *Limiter) Forget(h *backend.Hit) {
	if !l.guards(h.Limit) {
		return
	}
	own := backend.Hit{Key: append([]byte(*l.namespace.Load()), h.Key...), Limit: l.thresholds.Of(h.Limit), N: -limit.MaxHits}
	l.o.Counters.Take(context.Background(), time.Now(), []backend.Hit{own}, make([]backend.Result, 1))
}

// ForgetAll drops all that is known, as any counter may have been reset elsewhere: from
// now on its own counters have other keys.
func (l *Limiter) ForgetAll() {
	namespace := fmt.Sprintf("guard:%d:", namespaces.Add(1))
	l.namespace.Store(&namespace)
}

// namespaces counts those that there were.
var namespaces atomic.Uint64
