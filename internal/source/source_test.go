package source_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/source"
)

func TestNamesAttrIsBounded(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "changed=a; b", source.NamesAttr("changed", []string{"a", "b"}).String())
	assert.Equal(t, "changed=a; a; a; a; a; a; a; a; a; a; and 2 more", source.NamesAttr("changed", strings.Split("aaaaaaaaaaaa", "")).String())
}
