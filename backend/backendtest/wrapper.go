package backendtest

import (
	"testing"

	"github.com/seed-81f232ab/rls/backend"
)

// RunWrapper tests a Limiter that sends its hits to other Limiters, which pass Run. The tested Limiter must answer as
// these Limiters do. Each test calls open, as in Run.
func RunWrapper(t *testing.T, open func(t *testing.T) backend.Limiter) {
	t.Run("peeks at 0 remaining hits have one answer", func(t *testing.T) { testPeeksAtTheLimit(t, open(t)) })
	t.Run("random traces are answered as by limit.Take", func(t *testing.T) { testTraces(t, open(t)) })
	t.Run("a Take of many hits answers each", func(t *testing.T) { testManyHits(t, open(t)) })
	t.Run("64 callers with many hits are never admitted beyond the limit", func(t *testing.T) { testContentionOfMany(t, open(t)) })
}
