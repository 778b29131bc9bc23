// Package wait pauses until a time has passed or a context is done.
package wait

import (
	"context"
	"time"
)

// For waits for d. It reports false if ctx was done first.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
