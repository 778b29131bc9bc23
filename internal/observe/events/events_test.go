package events

import (
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/source/reload"
)

// newEvents returns an Events that logs to out.
func newEvents(out io.Writer) *Events {
	return New(Options{Metrics: metrics.New(), Health: server.NewHealth(), Log: slog.New(slog.NewTextHandler(out, nil)), Version: "v1", Backend: "local"})
}

func TestManyChangedOverridesAreOneEvent(t *testing.T) {
	events := newEvents(io.Discard)
	events.Limits(false, SourceOverrides).OverridesChanged(make([]reload.OverrideChange, 30))
	require.Len(t, events.Events(), 2, "the other event is the start")
	assert.Equal(t, "30 overrides changed", events.Events()[0].Text)
}
