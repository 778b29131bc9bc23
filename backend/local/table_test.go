package local

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// The fingerprints of this test have few homes, the last cell among them. So cells are moved
// along, also past the end.
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
			slot := got.find(id)
			_, known := want[id]
			require.Equal(t, known, slot >= 0)
			switch {
			case !known:
				got.entries[got.add(id, limit.State{})].spent = int64(i)
				want[id] = int64(i)
			case rapid.Bool().Draw(t, "remove"):
				got.remove(slot)
				delete(want, id)
			case rapid.Bool().Draw(t, "resize"):
				got.resize(len(got.entries) + rapid.IntRange(0, 3).Draw(t, "spare"))
			}
			require.Len(t, got.entries, len(want))
			for _, free := range got.entries[len(want):cap(got.entries)] {
				require.Zero(t, free, "a free entry would keep its log alive")
			}
			for id, spent := range want {
				slot := got.find(id)
				require.GreaterOrEqual(t, slot, 0)
				require.Equal(t, spent, got.entries[slot].spent)
			}
		}
	})
}
