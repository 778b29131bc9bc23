// Package polltest lets tests wait for events.
package polltest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Until calls cond every few milliseconds until cond returns true. If cond is still false after the
// timeout, the test fails at once. Until calls cond once more after the timeout, even on a slow
// machine. Unlike require.Eventually, Until calls cond in the goroutine of the
// test, so that cond can use require.
func Until(tb testing.TB, timeout time.Duration, cond func() bool, msgAndArgs ...any) {
	tb.Helper()
	for start := time.Now(); ; time.Sleep(pause) {
		isLate := time.Since(start) >= timeout
		if cond() {
			return
		}
		if isLate {
			require.FailNow(tb, "not within "+timeout.String(), msgAndArgs...)
		}
	}
}

// pause is the time between two calls of cond.
const pause = 2 * time.Millisecond
