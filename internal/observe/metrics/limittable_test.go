package metrics

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newLimitTable() *limitTable { return &limitTable{limitsByRule: map[string][]*limitSeries{}} }

// add adds a limit without series.
func (t *limitTable) add(name limitName) *limitSeries {
	return t.findOrAdd(name, func() *limitSeries { return &limitSeries{name: name} })
}

func TestLimitWithAFirstHitDuringAReloadIsNotRemoved(t *testing.T) {
	table, now := newLimitTable(), time.Now()
	removedLimit := table.add(limitName{rule: "d > a"})
	keptLimit := table.add(limitName{rule: "d > b"})
	table.beginConfig()
	require.Same(t, keptLimit, table.keep(keptLimit.name))
	newLimit := table.add(limitName{rule: "d > a", flags: "d"})
	table.markRemoved(now)
	assert.NotZero(t, removedLimit.removedAt)
	assert.Zero(t, keptLimit.removedAt)
	assert.Zero(t, newLimit.removedAt)

	assert.Len(t, table.allLimits(now.Add(removedRuleTTL-1)), 3)
	assert.ElementsMatch(t, []*limitSeries{keptLimit, newLimit}, table.allLimits(now.Add(removedRuleTTL)))
	assert.Nil(t, table.find(removedLimit.name))
	assert.Same(t, newLimit, table.find(newLimit.name))
}

// TestWalkFindsAllLimitsWhileOthersAreAdded adds limits while two goroutines walk over the table. A walk must find each
// limit that was in the table before the walk.
func TestWalkFindsAllLimitsWhileOthersAreAdded(t *testing.T) {
	const rules = 20 * rulesBeforePause
	table, now := newLimitTable(), time.Now()
	add := func(i int) { table.add(limitName{rule: fmt.Sprint(i)}) }
	for i := range rules {
		add(i)
	}
	var goroutines sync.WaitGroup
	goroutines.Go(func() {
		for i := range 2 * rules {
			add(i)
		}
	})
	for range 2 {
		goroutines.Go(func() {
			for range 20 {
				assert.GreaterOrEqual(t, len(table.allLimits(now)), rules)
			}
		})
	}
	goroutines.Wait()
	assert.Len(t, table.allLimits(now), 2*rules)
}
