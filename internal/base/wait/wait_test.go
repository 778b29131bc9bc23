package wait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

func TestSleepReturnsAfterTimeOrContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		assert.True(t, wait.Sleep(t.Context(), time.Hour))
		assert.Equal(t, time.Hour, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start = time.Now()
		assert.False(t, wait.Sleep(ctx, time.Hour))
		assert.Equal(t, time.Minute, time.Since(start))
	})
}
