// Package wait pauses until a time has passed or a context is done.
package wait

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Sleep waits for d and returns true. If ctx is done earlier, Sleep returns false at once.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Signal adds a signal to c, a channel of capacity 1, unless c already has a signal.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Backoff describes the pauses between the attempts of a retry.
type Backoff struct {
	// Initial is the pause after the first failure; it must be over 0. Each further failure doubles the pause, up to Max.
	Initial, Max time.Duration

	// Jitter is the largest random part of a pause, from 0 to 1. With 0.2, a pause is up to 20 % longer or shorter.
	Jitter float64
}

// Start returns the sequence of pauses. The first pause is Initial.
func (b Backoff) Start() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: b.Initial, MaxInterval: b.Max, RandomizationFactor: b.Jitter, Multiplier: 2,
	}
}
