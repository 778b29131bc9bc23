package local

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLimiter(t *testing.T) {
	backendtest.Run(t, func(*testing.T) backend.Limiter { return New(Options{}) })
}

func TestLimiterAllOrNone(t *testing.T) {
	backendtest.RunAllOrNone(t, func(*testing.T) backend.Limiter { return New(Options{AllOrNone: true}) })
}
