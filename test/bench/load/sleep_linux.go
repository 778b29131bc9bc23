package load

import (
	"syscall"
	"time"
)

// sleepUntil sleeps until a time, to about 0.1 ms. time.Sleep can be a millisecond late, which
// would count as latency.
func sleepUntil(due time.Time) {
	for {
		left := time.Until(due)
		if left <= 0 {
			return
		}
		pause := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&pause, nil)
	}
}
