package backend_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
)

func TestErrorKeepsItsReasonWhenWrapped(t *testing.T) {
	errFull := &backend.Error{Reason: backend.ReasonOverload, NotSent: true, Cause: errors.New("queue is full")}
	for name, c := range map[string]struct {
		err         error
		reason      backend.Reason
		notSent     bool
		unavailable bool
		text        string
	}{
		"outage":                          {fmt.Errorf("ping: %w", backend.ErrUnavailable), backend.ReasonOutage, false, true, "ping: rate limit backend unavailable"},
		"hit that was not sent":           {fmt.Errorf("redis: %w", errFull), backend.ReasonOverload, true, true, "redis: rate limit backend unavailable: this process is overloaded: queue is full"},
		"late answer that may still come": {backend.NewLateError(&backend.Error{Reason: backend.ReasonLate}), backend.ReasonLate, false, true, "rate limit backend unavailable: no answer in time"},
		"error of the caller":             {context.Canceled, backend.ReasonNone, false, false, "context canceled"},
		"cause of another error":          {&backend.Error{Reason: backend.ReasonOutage, Cause: context.DeadlineExceeded}, backend.ReasonOutage, false, true, "rate limit backend unavailable: context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.reason, backend.ReasonOf(c.err))
			assert.Equal(t, c.notSent, backend.IsNotSent(c.err))
			assert.Equal(t, c.unavailable, errors.Is(c.err, backend.ErrUnavailable))
			assert.EqualError(t, c.err, c.text)
		})
	}
	assert.ErrorIs(t, &backend.Error{Cause: context.Canceled}, context.Canceled)
}
