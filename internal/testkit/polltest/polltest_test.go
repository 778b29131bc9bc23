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
	message := runFailingTest(t, func(tb testing.TB) {
		polltest.Until(tb, 20*time.Millisecond, func() bool { calls++; return false }, "waiting for %s", "redis")
		calls = -1
	})
	assert.Contains(t, message, "not within 20ms")
	assert.Contains(t, message, "waiting for redis")
	assert.Greater(t, calls, 1)
}

func TestUntilCallsConditionOnceMoreAfterTimeout(t *testing.T) {
	wasCalled := false
	polltest.Until(t, time.Millisecond, func() bool {
		defer func() { wasCalled = true }()
		time.Sleep(2 * time.Millisecond) // as on a machine that was suspended
		return wasCalled
	})
}

func TestConditionMayFailTest(t *testing.T) {
	wasContinued := false
	message := runFailingTest(t, func(tb testing.TB) {
		polltest.Until(tb, time.Hour, func() bool { tb.Errorf("no"); tb.FailNow(); return true })
		wasContinued = true
	})
	assert.Equal(t, "no", message)
	assert.False(t, wasContinued)
}

// runFailingTest runs f as a test that must fail, and returns its message.
func runFailingTest(t *testing.T, f func(testing.TB)) string {
	tb := &failureRecorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(tb)
	}()
	<-done
	assert.True(t, tb.hasEnded)
	return tb.message
}

// failureRecorder records failures without failing the enclosing test.
type failureRecorder struct {
	testing.TB
	message  string
	hasEnded bool
}

func (f *failureRecorder) Errorf(format string, args ...any) {
	f.message += fmt.Sprintf(format, args...)
}

func (f *failureRecorder) FailNow() {
	f.hasEnded = true
	runtime.Goexit()
}
