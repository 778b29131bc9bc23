package changes

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func neverGone(string) bool { return false }

func historyOf(m *Memory) []Entry {
	history, _ := m.History(context.Background())
	return history
}

func TestRollbackGoesBackStepByStep(t *testing.T) {
	var m Memory
	put := func(field, value string) {
		_, err := m.MakeChange(context.Background(), Change{Action: Put, Writes: []Write{{Field: field, Value: &value}}})
		require.NoError(t, err)
	}
	rollBack := func(version int64) {
		writes, err := PlanRollback(historyOf(&m), version, neverGone)
		require.NoError(t, err)
		_, err = m.MakeChange(context.Background(), Change{Action: Rollback, RestoredVersion: version, Writes: writes})
		require.NoError(t, err)
	}
	_, err := PreviousVersion(historyOf(&m), m.Version())
	require.ErrorIs(t, err, ErrNothingToRollBack)
	put("a", "1")
	put("b", "1")
	put("a", "2")
	for _, want := range []map[string]string{{"a": "1", "b": "1"}, {"a": "1"}, {}} {
		version, err := PreviousVersion(historyOf(&m), m.Version())
		require.NoError(t, err)
		rollBack(version)
		assert.Equal(t, want, m.Fields())
	}
	_, err = PreviousVersion(historyOf(&m), m.Version())
	require.ErrorIs(t, err, ErrNothingToRollBack)

	rollBack(3)
	assert.Equal(t, map[string]string{"a": "2", "b": "1"}, m.Fields(), "a rollback to a later version brings its values back")
	version, err := PreviousVersion(historyOf(&m), m.Version())
	require.NoError(t, err)
	assert.EqualValues(t, 2, version)
	put("a", "3")
	version, err = PreviousVersion(historyOf(&m), m.Version())
	require.NoError(t, err)
	assert.EqualValues(t, 7, version, "the version of the last rollback")
}

// TestRollbackRestoresAnyVersion makes random changes and goes back to the values of a random
// version.
func TestRollbackRestoresAnyVersion(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var m Memory
		versions := []map[string]string{m.Fields()}
		for range rapid.IntRange(2, 12).Draw(rt, "changes") {
			w := Write{Field: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "field")}
			if rapid.Bool().Draw(rt, "set") {
				value := strconv.Itoa(rapid.IntRange(0, 3).Draw(rt, "value"))
				w.Value = &value
			}
			_, err := m.MakeChange(context.Background(), Change{Action: Put, Writes: []Write{w}})
			require.NoError(rt, err)
			versions = append(versions, m.Fields())
		}
		version := rapid.IntRange(0, len(versions)-2).Draw(rt, "version")
		writes, err := PlanRollback(historyOf(&m), int64(version), neverGone)
		require.NoError(rt, err)
		_, err = m.MakeChange(context.Background(), Change{Action: Rollback, RestoredVersion: int64(version), Writes: writes})
		require.NoError(rt, err)
		assert.Equal(rt, versions[version], m.Fields())
	})
}

func TestRollbackNeedsVersionOfHistory(t *testing.T) {
	var m Memory
	for range MaxHistory + 2 {
		value := "1"
		_, err := m.MakeChange(context.Background(), Change{Action: Put, Writes: []Write{{Field: "a", Value: &value}}})
		require.NoError(t, err)
	}
	for _, version := range []int64{-1, 1, 502, 503} {
		_, err := PlanRollback(historyOf(&m), version, neverGone)
		assert.ErrorContains(t, err, "want 2 to 501")
	}
}

func TestRollbackBringsNoEndedValueBack(t *testing.T) {
	isGone := func(value string) bool { return value == "ended" }
	for name, c := range map[string]struct {
		old, current string
		want         []Write
	}{
		"old value has ended": {"ended", "1", []Write{{Field: "a", Condition: Condition{Tags: []string{Tag("1")}}}}},
		"both have ended":     {"ended", "ended", nil},
		"new value has ended": {"1", "ended", []Write{{Field: "a", Value: new("1")}}},
	} {
		t.Run(name, func(t *testing.T) {
			var m Memory
			for _, value := range []string{c.old, c.current} {
				_, err := m.MakeChange(context.Background(), Change{Action: Put, Writes: []Write{{Field: "a", Value: &value}}})
				require.NoError(t, err)
			}
			writes, err := PlanRollback(historyOf(&m), 1, isGone)
			require.NoError(t, err)
			assert.Equal(t, c.want, writes)
		})
	}
}
