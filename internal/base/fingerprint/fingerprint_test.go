package fingerprint_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
)

func TestEachNameHasItsOwnID(t *testing.T) {
	seeds := fingerprint.NewSeeds()
	names := map[fingerprint.ID]string{}
	for _, key := range []string{"", "a", "ab", "b", "fw60", "a\x00", "fw60fw60"} {
		for _, tag := range []string{"", "a", "b", "fw60", "fw60i"} {
			id, name := seeds.ID([]byte(key), tag), fmt.Sprintf("%q %q", key, tag)
			assert.Empty(t, names[id], name)
			names[id] = name
			assert.Equal(t, id, seeds.ID([]byte(key), tag), name)
			assert.NotEqual(t, id.Lo, id.Hi, name)
		}
	}
}

func TestSameNameHasAnotherIDWithOtherSeeds(t *testing.T) {
	seeds, otherSeeds := fingerprint.NewSeeds(), fingerprint.NewSeeds()
	a, b := seeds.ID([]byte("key"), "fw60"), otherSeeds.ID([]byte("key"), "fw60")
	assert.NotEqual(t, a.Lo, b.Lo)
	assert.NotEqual(t, a.Hi, b.Hi)
}
