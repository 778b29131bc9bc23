// Package polltest lets tests wait for events.
package polltest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Until calls cond every few milliseconds until it returns true. The test fails at once if
// cond is false after the time within. Until calls cond once more after that time, even on
// a slow machine. Unlike require.Eventually, Until calls cond in the goroutine of the
// test, so that cond can use require.
func Until(tb testing.TB, within time.Duration, cond func() bool, msgAndArgs ...any) {
	tb.Helper()
	for start := time.Now(); ; time.Sleep(pause) {
		late := time.Since(start) >= within
		if cond() {
			return
		}
		if late {
			require.FailNow(tb, "not within "+within.String(), msgAndArgs...)
		}
	}
}

// pause is the time between two calls of cond.
const pause = 2 * time.Millisecond
