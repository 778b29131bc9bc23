package local

import (
	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// table is a hash table of counters. Against a Go map it takes three fifths of
// the memory, and its entries lie in one array, so that a fair sample of them
// costs no more than looking at each.
//
// cells find entries: open addressing with linear probing, at most two thirds
// full. Removal moves later cells back instead of leaving marks.
type table struct {
	entries []entry
	cells   []cell
}

// entry is a counter, in one cache line.
type entry struct {
	id      fingerprint.ID
	state   limit.State
	expires int64 // microseconds since the epoch; from then on nothing is spent
	spent   int64 // hits, as of the last Take
}

// cell points at an entry. It holds as much of the fingerprint as it takes to
// know the cell's place, and almost always to know a stranger.
type cell struct {
	hash uint32 // ID.Lo's lower half
	ref  uint32 // slot + 1; 0 for an empty cell
}

// find returns the slot of id's entry, or -1.
func (t *table) find(id fingerprint.ID) int {
	if len(t.entries) == 0 {
		return -1
	}
	hash := uint32(id.Lo)
	for i := t.home(hash); t.cells[i].ref != 0; i = t.next(i) {
		if c := t.cells[i]; c.hash == hash && t.entries[c.ref-1].id == id {
			return int(c.ref - 1)
		}
	}
	return -1
}

// add appends an entry for id, which has none, and returns its slot.
func (t *table) add(id fingerprint.ID, s limit.State) int {
	slot := len(t.entries)
	if slot == cap(t.entries) {
		t.resize(slot + slot/4 + 8)
	}
	t.entries = append(t.entries, entry{id: id, state: s})
	t.place(cell{uint32(id.Lo), uint32(slot + 1)})
	return slot
}

// remove takes an entry out and moves the last one to its slot.
func (t *table) remove(slot int) {
	t.vacate(t.cellOf(slot))
	last := len(t.entries) - 1
	if slot != last {
		t.cells[t.cellOf(last)].ref = uint32(slot + 1)
		t.entries[slot] = t.entries[last]
	}
	t.entries[last] = entry{} // lets go of its log
	t.entries = t.entries[:last]
}

// resize makes room for n entries, no fewer than there are.
func (t *table) resize(n int) {
	entries := make([]entry, len(t.entries), n)
	copy(entries, t.entries)
	old := t.cells
	t.entries, t.cells = entries, make([]cell, n+n/2+1)
	for _, c := range old {
		if c.ref != 0 {
			t.place(c)
		}
	}
}

func (t *table) place(c cell) {
	i := t.home(c.hash)
	for t.cells[i].ref != 0 {
		i = t.next(i)
	}
	t.cells[i] = c
}

// cellOf returns the place of the cell that points at slot.
func (t *table) cellOf(slot int) int {
	i := t.home(uint32(t.entries[slot].id.Lo))
	for t.cells[i].ref != uint32(slot+1) {
		i = t.next(i)
	}
	return i
}

// vacate empties cell i and moves back those behind it that this would cut off
// from their home.
func (t *table) vacate(i int) {
	for j := t.next(i); t.cells[j].ref != 0; j = t.next(j) {
		if t.behind(t.home(t.cells[j].hash), j) >= t.behind(i, j) {
			t.cells[i] = t.cells[j]
			i = j
		}
	}
	t.cells[i] = cell{}
}

// home is where the search for hash begins: hash as a fraction of 2^32, scaled.
func (t *table) home(hash uint32) int {
	return int(uint64(hash) * uint64(len(t.cells)) >> 32)
}

func (t *table) next(i int) int {
	if i++; i < len(t.cells) {
		return i
	}
	return 0
}

// behind is how many steps of next lead from i to j.
func (t *table) behind(i, j int) int {
	if j < i {
		j += len(t.cells)
	}
	return j - i
}
