package limitsgen

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestDrawnFilesAreValid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := File(t)
		assert.True(t, isValid(text), text)
	})
}
