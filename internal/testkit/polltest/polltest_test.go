package polltest_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

func TestUntilReturnsOnceConditionIsTrue(t *testing.T) {
	calls := 0
	polltest.Until(t, time.Hour, func() bool { calls++; return calls == 3 })
	assert.Equal(t, 3, calls)
}

func TestUntilFailsTestAfterTimeout(t *testing.T) {
	calls := 0
	message := fails(t, func(tb testing.TB) {
		polltest.Until(tb, 20*time.Millisecond, func() bool { calls++; return false }, "waiting for %s", "redis")
		calls = -1
	})
	assert.Contains(t, message, "not within 20ms")
	assert.Contains(t, message, "waiting for redis")
	assert.Greater(t, calls, 1)
}

func TestUntilCallsConditionOnceMoreAfterTimeout(t *testing.T) {
	late := false
	polltest.Until(t, time.Millisecond, func() bool {
		defer func() { late = true }()
		time.Sleep(2 * time.Millisecond) // as on a machine that was suspended
		return late
	})
}

func TestConditionMayFailTest(t *testing.T) {
	after := false
	message := fails(t, func(tb testing.TB) {
		polltest.Until(tb, time.Hour, func() bool { tb.Errorf("no"); tb.FailNow(); return true })
		after = true
	})
	assert.Equal(t, "no", message)
	assert.False(t, after)
}

// fails runs f as a test that must fail, and returns its message.
func fails(t *testing.T, f func(testing.TB)) string {
	tb := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(tb)
	}()
	<-done
	assert.True(t, tb.ended)
	return tb.message
}

// failing records failures without failing the enclosing test.
type failing struct {
	testing.TB
	message string
	ended   bool
}

func (f *failing) Errorf(format string, args ...any) { f.message += fmt.Sprintf(format, args...) }

func (f *failing) FailNow() {
	f.ended = true
	runtime.Goexit()
}
