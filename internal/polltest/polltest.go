// Package polltest lets tests wait for what comes about by itself.
package polltest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Until calls cond again and again until it is true, and ends the test if it isn't
// within that time. It calls it in the test's own goroutine, unlike
// require.Eventually, so that cond may use require; and once more when the time is
// over, however slow the machine. One that doesn't return holds up the test.
func Until(tb testing.TB, within time.Duration, cond func() bool, msgAndArgs ...any) {
	tb.Helper()
	for began := time.Now(); ; time.Sleep(pause) {
		late := time.Since(began) >= within
		if cond() {
			return
		}
		if late {
			require.FailNow(tb, "not within "+within.String(), msgAndArgs...)
		}
	}
}

// pause is how long it waits between two calls.
const pause = 2 * time.Millisecond
