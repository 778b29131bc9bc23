package redistest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// failureRecorder keeps the failures that a check reports.
type failureRecorder struct {
	testing.TB
	failures []string
}

func (r *failureRecorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestCountersWithoutTimeToLiveAreFound(t *testing.T) {
	s := Start(t)
	ctx, c := t.Context(), s.Client(t)
	for _, key := range []string{"{7}v1:tb60:shop|ip=1", "p:v2:fw60#hash:shop", "mine"} {
		require.NoError(t, c.Set(ctx, key, 1, 0).Err())
	}
	require.NoError(t, c.Set(ctx, "v2:fw86400:rls:probe:1@0", 1, time.Hour).Err())
	require.NoError(t, c.HSet(ctx, "p:rls:overrides", "target", "{}").Err())
	expiring, lasting := Keys(t, s)
	assert.Equal(t, []string{"v2:fw86400:rls:probe:1@0"}, expiring)
	assert.ElementsMatch(t, []string{"{7}v1:tb60:shop|ip=1", "p:v2:fw60#hash:shop", "mine"}, lasting)

	recorder := &failureRecorder{TB: t}
	checkCounters(recorder, s, "p:")
	require.Len(t, recorder.failures, 1)
	assert.Contains(t, recorder.failures[0], `1 counters have no time to live at the end of the test: ["p:v2:fw60#hash:shop"]`)

	require.NoError(t, c.Del(ctx, "{7}v1:tb60:shop|ip=1", "p:v2:fw60#hash:shop").Err())
	recorder.failures = nil
	checkCounters(recorder, s, "")
	assert.Empty(t, recorder.failures, "the key mine is no counter")
	require.NoError(t, c.Del(ctx, "mine").Err())
	assert.Equal(t, 1, RequireAllExpire(t, s), "the counter of the probe")

	s.Kill()
	checkCounters(recorder, s, "")
	assert.Empty(t, recorder.failures, "a killed server is not checked")
}
