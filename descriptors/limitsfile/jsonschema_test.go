package limitsfile

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEachFieldHasHelpForEditors(t *testing.T) {
	var names []string
	for _, r := range schema {
		if r.levels&(fileLevels|overrideLevels) != 0 {
			names = append(names, r.name)
		}
		if r.kind == listKind && r.levels&fileLevels != 0 {
			assert.Contains(t, itemNames, r.name)
		}
	}
	assert.Equal(t, slices.Sorted(slices.Values(names)), slices.Sorted(maps.Keys(fieldHelp)))
}
