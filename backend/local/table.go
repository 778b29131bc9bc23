package local

import (
	"unsafe"

	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// table is a hash table of counters. The counters have no pointers, so the garbage collector does not read them.
//
// The entries are in blocks, so a table grows without a copy of its entries, and a random sample is cheap. The cells
// are a hash table of indexes of entries, with open addressing and linear probing.
type table struct {
	size   int      // the number of entries
	blocks []*block // the blocks with the entries; at most one block is empty
	cells  []cell

	logs     []*limit.Log // the logs of entries; unused elements are nil
	freeLogs []uint32     // the logNumber of each unused element of logs
}

// blockSize is the number of entries in a block of one KiB.
const blockSize = 16

type block [blockSize]entry

// entry is a counter. It fills one cache line of 64 bytes.
type entry struct {
	id        fingerprint.ID
	numbers   limit.Numbers // the State without its log
	expiry    int64         // the time at which the counter has no spent hits, in microseconds since 1970
	spent     int64         // the spent hits after the last Take
	logNumber uint32        // the index of the log in logs, plus 1; 0 means no log
	lastReset uint32        // the number of resets by prefix before the counter was added
}

// cell refers to an entry. The hash determines the home of the cell: the place where a search for the cell begins.
type cell struct {
	hash        uint32 // the lower half of ID.Lo
	entryNumber uint32 // the index of the entry, plus 1; 0 for an empty cell
}

// minSpareEntries is the number of entries that a small table can get before it needs more cells.
const minSpareEntries = 8

// bytes returns the memory of the table, without logs.
func (t *table) bytes() int64 {
	return int64(len(t.blocks))*int64(unsafe.Sizeof(block{})) + int64(cap(t.blocks)+cap(t.logs))*8 + int64(cap(t.cells))*int64(unsafe.Sizeof(cell{}))
}

func (t *table) entryAt(index int) *entry { return &t.blocks[index/blockSize][index%blockSize] }

// find returns the index of the entry of id, or -1.
func (t *table) find(id fingerprint.ID) int {
	if t.size == 0 {
		return -1
	}
	hash := uint32(id.Lo)
	for i := t.home(hash); t.cells[i].entryNumber != 0; i = t.next(i) {
		if c := t.cells[i]; c.hash == hash && t.entryAt(int(c.entryNumber-1)).id == id {
			return int(c.entryNumber - 1)
		}
	}
	return -1
}

// add appends an entry for id, which must be new, and returns its index.
func (t *table) add(id fingerprint.ID) int {
	index := t.size
	if index == len(t.blocks)*blockSize {
		t.blocks = append(t.blocks, new(block))
	}
	t.size++
	if len(t.cells) < cellCount(t.size) {
		t.resizeCells(t.size + t.size/4 + minSpareEntries)
	}
	t.entryAt(index).id = id
	t.place(cell{uint32(id.Lo), uint32(index + 1)})
	return index
}

// remove removes an entry with its log. The last entry moves to the index of the removed entry.
func (t *table) remove(index int) {
	t.setLog(t.entryAt(index), nil)
	t.emptyCell(t.cellOf(index))
	lastIndex := t.size - 1
	if index != lastIndex {
		t.cells[t.cellOf(lastIndex)].entryNumber = uint32(index + 1)
		*t.entryAt(index) = *t.entryAt(lastIndex)
	}
	*t.entryAt(lastIndex) = entry{}
	t.size = lastIndex
	t.freeBlocks(1)
}

// freeBlocks frees the empty blocks, but keeps up to spareBlocks of them.
func (t *table) freeBlocks(spareBlocks int) {
	if maxBlocks := (t.size+blockSize-1)/blockSize + spareBlocks; maxBlocks < len(t.blocks) {
		clear(t.blocks[maxBlocks:])
		t.blocks = t.blocks[:maxBlocks]
	}
}

func (t *table) stateOf(e *entry) limit.State {
	if e.logNumber == 0 {
		return e.numbers.Join(nil)
	}
	return e.numbers.Join(t.logs[e.logNumber-1])
}

func (t *table) setLog(e *entry, log *limit.Log) {
	switch {
	case log == nil && e.logNumber == 0:
	case log == nil:
		t.logs[e.logNumber-1] = nil
		t.freeLogs = append(t.freeLogs, e.logNumber)
		e.logNumber = 0
	case e.logNumber != 0:
		t.logs[e.logNumber-1] = log
	case len(t.freeLogs) > 0:
		lastIndex := len(t.freeLogs) - 1
		e.logNumber = t.freeLogs[lastIndex]
		t.freeLogs = t.freeLogs[:lastIndex]
		t.logs[e.logNumber-1] = log
	default:
		t.logs = append(t.logs, log)
		e.logNumber = uint32(len(t.logs))
	}
}

// cellCount returns the number of cells for n entries. A third of the cells stays empty, so that searches are short.
func cellCount(n int) int { return n + n/2 + 1 }

// resizeCells makes new cells for up to n entries, and puts the old cells into the new cells. n is at least t.size.
func (t *table) resizeCells(n int) {
	oldCells := t.cells
	t.cells = make([]cell, cellCount(n))
	for _, c := range oldCells {
		if c.entryNumber != 0 {
			t.place(c)
		}
	}
}

// place puts c into the first empty cell at or after its home.
func (t *table) place(c cell) {
	i := t.home(c.hash)
	for t.cells[i].entryNumber != 0 {
		i = t.next(i)
	}
	t.cells[i] = c
}

// cellOf returns the index of the cell that refers to the entry with this index.
func (t *table) cellOf(index int) int {
	i := t.home(uint32(t.entryAt(index).id.Lo))
	for t.cells[i].entryNumber != uint32(index+1) {
		i = t.next(i)
	}
	return i
}

// emptyCell empties cell i. It moves later cells back, so that find still reaches each cell from the home of the cell.
func (t *table) emptyCell(i int) {
	for j := t.next(i); t.cells[j].entryNumber != 0; j = t.next(j) {
		if t.distance(t.home(t.cells[j].hash), j) >= t.distance(i, j) {
			t.cells[i] = t.cells[j]
			i = j
		}
	}
	t.cells[i] = cell{}
}

// home returns the index of the cell at which the search for hash begins. The index grows with the hash.
func (t *table) home(hash uint32) int {
	return int(uint64(hash) * uint64(len(t.cells)) >> 32)
}

// next returns the cell after cell i. Cell 0 comes after the last cell.
func (t *table) next(i int) int {
	if i++; i < len(t.cells) {
		return i
	}
	return 0
}

// distance returns the number of calls of next that lead from cell i to cell j.
func (t *table) distance(i, j int) int {
	if j < i {
		j += len(t.cells)
	}
	return j - i
}
