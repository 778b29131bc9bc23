package local

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
)

func TestMemoryKeepsQuotas(t *testing.T) {
	q := NewQuotas()
	backendtest.RunQuotas(t, q, q)
}

func TestExpiredQuotasFreeTheirMemory(t *testing.T) {
	q := NewQuotas()
	now := int64(1_000_000_000)
	q.nowMicro = func() int64 { return now }
	for i := range 100 {
		q.Update(context.Background(), []*backend.QuotaChange{{Key: fmt.Append(nil, i), Apply: func([]byte, int64, int64) ([]byte, time.Duration) {
			return []byte("x"), time.Second
		}}})
		now += sweepInterval
	}
	assert.LessOrEqual(t, len(q.states), 2)
}
