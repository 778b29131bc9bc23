package overrides

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPendingMergesReads(t *testing.T) {
	t.Parallel()
	p := newPending()
	for range 3 {
		p.addRead()
	}
	<-p.ready
	assert.Empty(t, p.ready)
	assert.Equal(t, work{read: true}, p.take())
	assert.Equal(t, work{}, p.take())

	p.addMissed()
	assert.Equal(t, work{read: true, missedResets: true}, p.take())
}

func TestPendingBoundsResets(t *testing.T) {
	t.Parallel()
	for _, length := range []int{0, 100, MaxCounter, maxPendingBytes} {
		p := newPending()
		counter := strings.Repeat("x", length)
		const added = 2 * maxPendingBytes / 64
		for range added {
			p.addReset(counter)
		}
		w := p.take()
		assert.Equal(t, len(w.resets) < added, w.missedResets)
		assert.LessOrEqual(t, len(w.resets)*length, maxPendingBytes)
		assert.LessOrEqual(t, len(w.resets), maxPendingBytes/64)
		assert.Equal(t, length == maxPendingBytes, len(w.resets) == 0)
		p.addReset("a")
		assert.Equal(t, work{resets: []string{"a"}}, p.take(), "there is space again")
	}
}
