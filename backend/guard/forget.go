package guard

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Forget drops what is known of h's counter, as it was reset elsewhere.
func (l *Limiter) Forget(h *backend.Hit) {
	if !l.guards(h.Limit) {
		return
	}
	own := backend.Hit{Key: append([]byte(Namespace), h.Key...), Limit: l.thresholds.Of(h.Limit), N: -limit.MaxHits}
	l.o.Counters.Take(context.Background(), time.Now(), []backend.Hit{own}, make([]backend.Result, 1))
}
