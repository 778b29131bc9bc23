package events

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
)

func TestRefusedCallsMakeOneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		events := newEvents(&out)
		refuse := events.RefusedCalls()
		for i := range 120 {
			refuse(fmt.Sprintf("10.0.0.%d", i))
			time.Sleep(time.Second)
		}
		assert.Equal(t, 2, strings.Count(out.String(), "calls refused; a caller sent too many calls"))
		assert.Contains(t, out.String(), "setting=MAX_CALLER_CALLS_PER_SECOND calls=60 last_caller=10.0.0.60")
		assert.Equal(t, "calls refused; a caller sent too many calls", events.Events()[0].Text)
		assert.NotContains(t, fmt.Sprint(events.Events()), "10.0.0.", "viewers who may not see callers see the events")
	})
}

func TestUnconfirmedBatchesMakeOneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		o := newEvents(&out).Batches(live.NewRecorder(nil, true), 2, redis.RoleMain, redis.RolePerSecond)
		for range 120 {
			o.BatchDone(redis.Batch{Role: redis.RoleMain, ReplicasMissing: true})
			time.Sleep(time.Second)
		}
		o.BatchDone(redis.Batch{Role: redis.RolePerSecond, ReplicasMissing: true})
		assert.Equal(t, 2, strings.Count(out.String(), "server=main"))
		assert.Contains(t, out.String(), "batches=1 replicas_wanted=2")
		assert.Contains(t, out.String(), "batches=60")
		assert.Equal(t, 1, strings.Count(out.String(), "server=per_second"))
	})
}

func TestSecondLossOfCountersWithinAMinuteHasItsOwnLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		o := newEvents(&out).Batches(live.NewRecorder(nil, false), 0, redis.RoleMain)
		o.CountersLost(redis.RoleMain, true)
		time.Sleep(8 * time.Second) // the shortest pause between two probes
		o.CountersLost(redis.RoleMain, true)
		assert.Equal(t, 2, strings.Count(out.String(), "Redis lost its counters"))
	})
}

func TestLossOfCountersIsLoggedOnceAndIsInTheTimeline(t *testing.T) {
	var out bytes.Buffer
	events := newEvents(&out)
	o := events.Batches(live.NewRecorder(nil, false), 0, redis.RoleMain)
	for range 12 { // the shards of a Cluster
		o.CountersLost(redis.RoleMain, true)
	}
	assert.Equal(t, 1, strings.Count(out.String(), `level=ERROR msg="Redis lost its counters; limits start at 0" server=main`))
	require.Len(t, events.Events(), 2)
	assert.Equal(t, "Redis lost its counters; limits start at 0", events.Events()[0].Text)
	assert.Equal(t, timeline.Attr{Name: "times", Value: "12"}, events.Events()[0].Attrs[0])
}
