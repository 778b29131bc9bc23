package upgrade

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, redistest.IgnoreShared()...)
}
