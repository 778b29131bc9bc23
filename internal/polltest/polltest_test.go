package polltest_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/polltest"
)

func TestUntilReturnsAsSoonAsItIsTrue(t *testing.T) {
	calls := 0
	polltest.Until(t, time.Hour, func() bool { calls++; return calls == 3 })
	assert.Equal(t, 3, calls)
}

func TestUntilEndsATestWhoseTimeIsOver(t *testing.T) {
	calls := 0
	said := fails(t, func(tb testing.TB) {
		polltest.Until(tb, 20*time.Millisecond, func() bool { calls++; return false }, "waiting for %s", "a bus")
		calls = -1
	})
	assert.Contains(t, said, "not within 20ms")
	assert.Contains(t, said, "waiting for a bus")
	assert.Greater(t, calls, 1)
}

func TestUntilAsksOnceMoreWhenTheTimeIsOver(t *testing.T) {
	late := false
	polltest.Until(t, time.Millisecond, func() bool {
		defer func() { late = true }()
		time.Sleep(2 * time.Millisecond) // as on a machine that stood still
		return late
	})
}

func TestAConditionMayEndTheTest(t *testing.T) {
	after := false
	said := fails(t, func(tb testing.TB) {
		polltest.Until(tb, time.Hour, func() bool { tb.Errorf("no"); tb.FailNow(); return true })
		after = true
	})
	assert.Equal(t, "no", said)
	assert.False(t, after)
}

// fails runs f as a test that should fail, and returns what it says.
func fails(t *testing.T, f func(testing.TB)) string {
	tb := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(tb)
	}()
	<-done
	assert.True(t, tb.ended)
	return tb.said
}

// failing is a test that fails without failing the one that it is in.
type failing struct {
	testing.TB
	said  string
	ended bool
}

func (f *failing) Errorf(format string, args ...any) { f.said += fmt.Sprintf(format, args...) }

func (f *failing) FailNow() {
	f.ended = true
	runtime.Goexit()
}
