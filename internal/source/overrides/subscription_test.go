package overrides

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestPingIntervalIsHalfAResyncWithinBounds(t *testing.T) {
	t.Parallel()
	for resync, want := range map[time.Duration]time.Duration{
		time.Millisecond: 250 * time.Millisecond,
		4 * time.Second:  2 * time.Second,
		time.Hour:        5 * time.Second,
	} {
		assert.Equal(t, want, pingInterval(resync), resync)
	}
}
