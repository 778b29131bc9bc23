package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestOnlyALowerCountOfTheSameDayIsALoss(t *testing.T) {
	today := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	tomorrow := today.Add(24 * time.Hour)
	for name, c := range map[string]struct {
		lastCount, countBefore, countAfter probeCount
		wantLoss, wantKept                 bool
		wantLast                           int64
	}{
		"first probe":                         {countAfter: probeCount{1, today}, wantLast: 1},
		"next probe":                          {probeCount{4, today}, probeCount{4, today}, probeCount{5, today.Add(-time.Second)}, false, true, 5},
		"lost counters":                       {probeCount{4, today}, probeCount{4, today}, probeCount{1, today}, true, false, 1},
		"lost last charge":                    {probeCount{4, today}, probeCount{4, today}, probeCount{4, today}, true, false, 4},
		"next day":                            {probeCount{4, today}, probeCount{4, today}, probeCount{1, tomorrow}, false, false, 1},
		"another probe was faster":            {probeCount{6, today}, probeCount{4, today}, probeCount{5, today}, false, true, 6},
		"another probe has reported the loss": {probeCount{1, today}, probeCount{4, today}, probeCount{2, today}, false, false, 2},
	} {
		s := probedShard{lastProbe: c.lastCount}
		assert.Equal(t, c.wantLoss, s.recordProbe(c.countBefore, c.countAfter), name)
		assert.Equal(t, c.wantKept, s.hasKeptCounters, name)
		assert.Equal(t, c.wantLast, s.lastProbe.count, name)
	}
}

// A count that starts again at the end of its day is no loss.
func TestCountOfProbesEndsWithTheDayOfRedis(t *testing.T) {
	db := redistest.Open(t)
	l, err := New(Options{Main: Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: 10 * time.Second})
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, l.Probe(t.Context(), 0))
	dayEnd := l.probes.shards[0].lastProbe.dayEnd
	assert.WithinDuration(t, dayEnd.Round(24*time.Hour), dayEnd, 10*time.Second, "midnight in UTC")
}
