package denycache

import "github.com/seed-81f232ab/rls/backend"

// Forget drops what is known of h's counter, as it was reset elsewhere.
func (l *Limiter) Forget(h *backend.Hit) {
	l.table.forget(l.table.seeds.Of(h.Key, h.Limit.Tag()))
}

// ForgetAll drops all that is known, as any counter may have been reset elsewhere.
func (l *Limiter) ForgetAll() { l.table.forgetAll() }
