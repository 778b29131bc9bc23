package limitsfile

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

func TestEachFieldHasHelpForEditors(t *testing.T) {
	var names []string
	for _, r := range schema {
		if r.levels&(fileLevels|overrideLevels) != 0 {
			names = append(names, r.Name)
		}
		if r.Kind == fields.List && r.levels&fileLevels != 0 {
			assert.Contains(t, itemNames, r.Name)
		}
	}
	assert.Equal(t, slices.Sorted(slices.Values(names)), slices.Sorted(maps.Keys(fieldHelp)))
}
