package changes

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func neverExpired(string) bool { return false }

func readHistory(m *Memory) []Entry {
	history, _ := m.History(context.Background())
	return history
}

func TestRollbacksRestoreOneVersionAfterTheOther(t *testing.T) {
	var memory Memory
	put := func(field, value string) {
		_, err := memory.MakeChange(context.Background(), Change{Origin: Origin{Action: Put}, Writes: []Write{{Field: field, Value: &value}}})
		require.NoError(t, err)
	}
	rollBack := func(version int64) {
		writes, err := PlanRollback(readHistory(&memory), version, neverExpired)
		require.NoError(t, err)
		_, err = memory.MakeChange(context.Background(), Change{Origin: Origin{Action: Rollback, RestoredVersion: version}, Writes: writes})
		require.NoError(t, err)
	}
	_, err := PreviousVersion(readHistory(&memory), memory.Version())
	require.ErrorIs(t, err, ErrNothingToRollBack)
	put("a", "1")
	put("b", "1")
	put("a", "2")
	for _, want := range []map[string]string{{"a": "1", "b": "1"}, {"a": "1"}, {}} {
		version, err := PreviousVersion(readHistory(&memory), memory.Version())
		require.NoError(t, err)
		rollBack(version)
		assert.Equal(t, want, memory.Fields())
	}
	_, err = PreviousVersion(readHistory(&memory), memory.Version())
	require.ErrorIs(t, err, ErrNothingToRollBack)

	rollBack(3)
	assert.Equal(t, map[string]string{"a": "2", "b": "1"}, memory.Fields(), "a rollback to a later version brings its values back")
	version, err := PreviousVersion(readHistory(&memory), memory.Version())
	require.NoError(t, err)
	assert.EqualValues(t, 2, version)
	put("a", "3")
	version, err = PreviousVersion(readHistory(&memory), memory.Version())
	require.NoError(t, err)
	assert.EqualValues(t, 7, version, "the version of the rollback before the put")
}

// TestRollbackRestoresAnyVersion makes random changes, and restores the values of a random version.
func TestRollbackRestoresAnyVersion(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var memory Memory
		versions := []map[string]string{memory.Fields()}
		for range rapid.IntRange(2, 12).Draw(rt, "changes") {
			w := Write{Field: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "field")}
			if rapid.Bool().Draw(rt, "set") {
				value := strconv.Itoa(rapid.IntRange(0, 3).Draw(rt, "value"))
				w.Value = &value
			}
			_, err := memory.MakeChange(context.Background(), Change{Origin: Origin{Action: Put}, Writes: []Write{w}})
			require.NoError(rt, err)
			versions = append(versions, memory.Fields())
		}
		version := rapid.IntRange(0, len(versions)-2).Draw(rt, "version")
		writes, err := PlanRollback(readHistory(&memory), int64(version), neverExpired)
		require.NoError(rt, err)
		_, err = memory.MakeChange(context.Background(), Change{Origin: Origin{Action: Rollback, RestoredVersion: int64(version)}, Writes: writes})
		require.NoError(rt, err)
		assert.Equal(rt, versions[version], memory.Fields())
	})
}

func TestRollbackToVersionOutsideHistoryFails(t *testing.T) {
	var memory Memory
	for range MaxHistory + 2 {
		value := "1"
		_, err := memory.MakeChange(context.Background(), Change{Origin: Origin{Action: Put}, Writes: []Write{{Field: "a", Value: &value}}})
		require.NoError(t, err)
	}
	for _, version := range []int64{-1, 1, 502, 503} {
		_, err := PlanRollback(readHistory(&memory), version, neverExpired)
		assert.ErrorContains(t, err, "want 2 to 501")
	}
}

func TestRollbackRestoresNoExpiredValue(t *testing.T) {
	isExpired := func(value string) bool { return value == "expired" }
	for name, test := range map[string]struct {
		oldValue, newValue string
		want               []Write
	}{
		"an expired old value": {"expired", "1", []Write{{Field: "a", Condition: Condition{Tag: Tag("1")}}}},
		"two expired values":   {"expired", "expired", nil},
		"an expired new value": {"1", "expired", []Write{{Field: "a", Value: new("1")}}},
	} {
		t.Run(name, func(t *testing.T) {
			var memory Memory
			for _, value := range []string{test.oldValue, test.newValue} {
				_, err := memory.MakeChange(context.Background(), Change{Origin: Origin{Action: Put}, Writes: []Write{{Field: "a", Value: &value}}})
				require.NoError(t, err)
			}
			writes, err := PlanRollback(readHistory(&memory), 1, isExpired)
			require.NoError(t, err)
			assert.Equal(t, test.want, writes)
		})
	}
}
