package limitstest

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEachFieldHasASchema(t *testing.T) {
	names := slices.Concat(fileFields, settingFields, testFields, requestFields, targetFields, wantFields, statusFields)
	slices.Sort(names)
	assert.Equal(t, slices.Compact(names), slices.Sorted(maps.Keys(fieldSchemas)))
}
