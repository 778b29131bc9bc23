package local

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

var logs [200]limit.Log

// logOf returns the log of the counter that step i adds.
func logOf(i int) *limit.Log { return &logs[i] }

// The fingerprints of this test belong to few cells, and one of these cells is the last one. So the table moves cells,
// even from its start to its end.
func TestTableFindsItsEntriesAndNoOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Custom(func(t *rapid.T) fingerprint.ID {
			return fingerprint.ID{
				Lo: rapid.SampledFrom([]uint64{0, 1, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 2, 1<<32 - 1, 1 << 32}).Draw(t, "lo"),
				Hi: rapid.Uint64Range(0, 7).Draw(t, "hi"),
			}
		})
		var got table
		want := map[fingerprint.ID]int64{}
		for i := range rapid.IntRange(0, 200).Draw(t, "steps") {
			id := id.Draw(t, "id")
			index := got.find(id)
			_, isKnown := want[id]
			require.Equal(t, isKnown, index >= 0)
			switch {
			case !isKnown:
				e := got.entryAt(got.add(id))
				e.spent = int64(i)
				want[id] = int64(i)
				if rapid.Bool().Draw(t, "log") {
					got.setLog(e, logOf(i))
				}
			case rapid.Bool().Draw(t, "remove"):
				got.remove(index)
				delete(want, id)
			case rapid.Bool().Draw(t, "resize"):
				got.resizeCells(got.size + rapid.IntRange(0, 3).Draw(t, "spare"))
			}
			require.Equal(t, len(want), got.size)
			require.Less(t, len(got.blocks)*blockSize-got.size, 2*blockSize, "at most one block is empty")
			logs := 0
			for index := range len(got.blocks) * blockSize {
				switch e := got.entryAt(index); {
				case index >= got.size:
					require.Zero(t, *e, "a free entry is zero")
				case e.logNumber != 0:
					logs++
					require.Same(t, logOf(int(e.spent)), got.logs[e.logNumber-1])
				}
			}
			require.Equal(t, len(got.logs), logs+len(got.freeLogs))
			for _, freeNumber := range got.freeLogs {
				require.Nil(t, got.logs[freeNumber-1], "an unused log would stay in memory")
			}
			for id, spent := range want {
				index := got.find(id)
				require.GreaterOrEqual(t, index, 0)
				require.Equal(t, spent, got.entryAt(index).spent)
			}
		}
	})
}

func TestTableHasAtMostOneEmptyBlock(t *testing.T) {
	var got table
	for i := range uint64(100) {
		got.add(fingerprint.ID{Lo: i})
	}
	for got.size > 0 {
		require.Less(t, len(got.blocks)*blockSize-got.size, 2*blockSize, "%d entries", got.size)
		got.remove(0)
	}
}
