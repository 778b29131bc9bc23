package overrides

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInboxAsksForEachTargetOnce(t *testing.T) {
	b := newInbox()
	for range 3 {
		b.changed("a")
		b.changed("b")
	}
	<-b.filled
	assert.Empty(t, b.filled)
	assert.Equal(t, messages{targets: []string{"a", "b"}}, b.takeAll())
	assert.Equal(t, messages{}, b.takeAll())
}

func TestInboxTurnsTooMuchIntoAFullRead(t *testing.T) {
	for name, fill := range map[string]func(*inbox){
		"many targets": func(b *inbox) {
			for i := range maxTargets + 1 {
				b.changed(fmt.Sprint(i))
			}
		},
		"a long target":      func(b *inbox) { b.changed(strings.Repeat("x", MaxTarget+1)) },
		"asked for":          func(b *inbox) { b.reload() },
		"perhaps missed":     func(b *inbox) { b.changed("a"); b.miss(); b.missed = false },
		"asked for, and one": func(b *inbox) { b.changed("a"); b.reload(); b.changed("b") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newInbox()
			fill(b)
			assert.Equal(t, messages{all: true}, b.takeAll())
		})
	}
}

func TestInboxTellsThatItMissedResetsItHasNoRoomFor(t *testing.T) {
	for _, length := range []int{0, 100, MaxCounter, maxInbox} {
		b := newInbox()
		counter := strings.Repeat("x", length)
		const told = 2 * maxInbox / 64
		for range told {
			b.reset(counter)
		}
		m := b.takeAll()
		assert.Equal(t, len(m.resets) < told, m.missed)
		assert.LessOrEqual(t, len(m.resets)*length, maxInbox)
		assert.LessOrEqual(t, len(m.resets), maxInbox/64)
		assert.Equal(t, length == maxInbox, len(m.resets) == 0)
		b.reset("a")
		assert.Equal(t, messages{resets: []string{"a"}}, b.takeAll(), "there is room again")
	}
}
