package backend

import (
	"context"
	"errors"
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

type resetter struct {
	err   error
	calls int
}

func (r *resetter) ResetPrefix(context.Context, KeyPrefix, int, bool) (PrefixReset, error) {
	r.calls++
	return PrefixReset{Counters: 7}, r.err
}

func TestPrefixIsResetInBothScopesOrInNone(t *testing.T) {
	for name, err := range map[string]error{"no error": nil, "an error of scope global": errors.New("down")} {
		global, instance := &resetter{err: err}, &resetter{}
		r, got := PrefixResetterPair{global, instance}.ResetPrefix(t.Context(), KeyPrefix{}, 1, false)
		assert.Equal(t, err, got, name)
		assert.Equal(t, 7, r.Counters, name)
		assert.Equal(t, err == nil, instance.calls == 1, name)
	}
}
