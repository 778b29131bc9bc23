package metrics

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newLimitTable() *limitTable { return &limitTable{byRule: map[string]*limitSeries{}} }

// add adds a limit without series.
func (t *limitTable) add(name limitName) *limitSeries {
	return t.findOrAdd(name, func() *limitSeries { return &limitSeries{name: name} })
}

func TestLimitWithAFirstHitDuringAReloadIsNotRemoved(t *testing.T) {
	table, now := newLimitTable(), time.Now()
	removed := table.add(limitName{rule: "d > a"})
	kept := table.add(limitName{rule: "d > b"})
	table.beginConfig()
	require.Same(t, kept, table.keep(kept.name))
	added := table.add(limitName{rule: "d > a", flags: "d"})
	table.markRemoved(now)
	assert.NotZero(t, removed.removedAt)
	assert.Zero(t, kept.removedAt)
	assert.Zero(t, added.removedAt)

	assert.Len(t, table.all(now.Add(removedRuleTTL-1)), 3)
	assert.ElementsMatch(t, []*limitSeries{kept, added}, table.all(now.Add(removedRuleTTL)))
	assert.Nil(t, table.find(removed.name))
	assert.Same(t, added, table.find(added.name))
}

// TestLimitsAreAddedAndReadTogether adds limits while two others walk over the table. Each
// limit that was there before a walk is in its result.
func TestLimitsAreAddedAndReadTogether(t *testing.T) {
	const rules = 20 * rulesPerStep
	table, now := newLimitTable(), time.Now()
	add := func(i int) { table.add(limitName{rule: fmt.Sprint(i)}) }
	for i := range rules {
		add(i)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for i := range 2 * rules {
			add(i)
		}
	})
	for range 2 {
		running.Go(func() {
			for range 20 {
				assert.GreaterOrEqual(t, len(table.all(now)), rules)
			}
		})
	}
	running.Wait()
	assert.Len(t, table.all(now), 2*rules)
}
