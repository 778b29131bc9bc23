package local

import (
	"unsafe"

	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// table is a hash table of counters. It needs three fifths of the memory of a Go map. All
// entries lie in one array, so a random sample of them is cheap.
//
// cells find the entries by open addressing with linear probing. At most two thirds of the
// cells are used. A removal moves later cells back instead of leaving marks.
type table struct {
	entries []entry
	cells   []cell
}

// entry is a counter. It fills one cache line of 64 bytes.
type entry struct {
	id      fingerprint.ID
	state   limit.State
	expires int64 // microseconds since the epoch; the state is zero from then on
	spent   int64 // hits, as of the last Take
}

// cell refers to an entry. The hash determines the home of the cell. Two counters rarely
// have the same hash, so a search compares few entries.
type cell struct {
	hash uint32 // lower half of ID.Lo
	ref  uint32 // slot + 1; 0 for an empty cell
}

// bytes returns the memory of the table, without logs.
func (t *table) bytes() int64 {
	return int64(cap(t.entries))*int64(unsafe.Sizeof(entry{})) + int64(cap(t.cells))*int64(unsafe.Sizeof(cell{}))
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

// add appends an entry for id, which must be new, and returns its slot.
func (t *table) add(id fingerprint.ID, s limit.State) int {
	slot := len(t.entries)
	if slot == cap(t.entries) {
		t.resize(slot + slot/4 + 8)
	}
	t.entries = append(t.entries, entry{id: id, state: s})
	t.place(cell{uint32(id.Lo), uint32(slot + 1)})
	return slot
}

// remove removes an entry and moves the last entry to its slot.
func (t *table) remove(slot int) {
	t.backshift(t.cellOf(slot))
	last := len(t.entries) - 1
	if slot != last {
		t.cells[t.cellOf(last)].ref = uint32(slot + 1)
		t.entries[slot] = t.entries[last]
	}
	t.entries[last] = entry{} // frees its log
	t.entries = t.entries[:last]
}

// resize allocates memory for n entries. n must be at least the number of entries.
func (t *table) resize(n int) {
	entries := make([]entry, len(t.entries), n)
	copy(entries, t.entries)
	oldCells := t.cells
	t.entries, t.cells = entries, make([]cell, n+n/2+1)
	for _, c := range oldCells {
		if c.ref != 0 {
			t.place(c)
		}
	}
}

// place puts c into the first empty cell from its home on.
func (t *table) place(c cell) {
	i := t.home(c.hash)
	for t.cells[i].ref != 0 {
		i = t.next(i)
	}
	t.cells[i] = c
}

// cellOf returns the index of the cell that refers to slot.
func (t *table) cellOf(slot int) int {
	i := t.home(uint32(t.entries[slot].id.Lo))
	for t.cells[i].ref != uint32(slot+1) {
		i = t.next(i)
	}
	return i
}

// backshift empties cell i. It moves later cells back so that each can be reached from its
// home.
func (t *table) backshift(i int) {
	for j := t.next(i); t.cells[j].ref != 0; j = t.next(j) {
		if t.distance(t.home(t.cells[j].hash), j) >= t.distance(i, j) {
			t.cells[i] = t.cells[j]
			i = j
		}
	}
	t.cells[i] = cell{}
}

// home returns the cell at which the search for hash begins: hash/2^32 of all cells.
func (t *table) home(hash uint32) int {
	return int(uint64(hash) * uint64(len(t.cells)) >> 32)
}

func (t *table) next(i int) int {
	if i++; i < len(t.cells) {
		return i
	}
	return 0
}

// distance returns how many steps of next lead from i to j.
func (t *table) distance(i, j int) int {
	if j < i {
		j += len(t.cells)
	}
	return j - i
}
