package backend

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPrefixMatchesWholeEntries(t *testing.T) {
	for _, c := range []struct {
		prefix KeyPrefix
		key    string
		want   bool
	}{
		{KeyPrefix{Start: "shop|tenant=a"}, "shop|tenant=a", true},
		{KeyPrefix{Start: "shop|tenant=a"}, "shop|tenant=a|path=/x", true},
		{KeyPrefix{Start: "shop|tenant=a"}, "shop|tenant=acme", false},
		{KeyPrefix{Start: "shop|tenant=a"}, "shop|tenant=", false},
		{KeyPrefix{Start: "shop|tenant=", EndsAnywhere: true}, "shop|tenant=acme", true},
		{KeyPrefix{Start: "shop|tenant=", EndsAnywhere: true}, "shop|tenants=acme", false},
		{KeyPrefix{Start: "shop|", EndsAnywhere: true}, "shop|tenant=acme", true},
		{KeyPrefix{Start: "shop|", EndsAnywhere: true}, "shop2|tenant=acme", false},
	} {
		assert.Equal(t, c.want, c.prefix.Matches(c.key), "%+v %s", c.prefix, c.key)
	}
}
