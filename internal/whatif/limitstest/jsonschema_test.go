package limitstest

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

func TestEachFieldHasADescription(t *testing.T) {
	names := fields.Names(slices.Concat(fileFields, settingFields, testFields, requestFields, descriptorFields, wantFields, statusFields))
	slices.Sort(names)
	assert.Equal(t, slices.Compact(names), slices.Sorted(maps.Keys(fieldHelp)))
}
