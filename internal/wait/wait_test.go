package wait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/wait"
)

func TestForReturnsAfterTimeOrContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		assert.True(t, wait.Sleep(t.Context(), time.Hour))
		assert.Equal(t, time.Hour, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		assert.False(t, wait.Sleep(ctx, time.Hour))
		assert.Equal(t, time.Minute, time.Since(began))
	})
}
