package descriptors

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// describe returns the near rules in short: path, and the kind and entry of each change.
func describe(rules []NearRule) (texts []string) {
	for _, r := range rules {
		text := strings.TrimPrefix(r.Path, "d > ") + ":"
		for _, c := range r.Changes {
			text += fmt.Sprintf(" %v@%d", c.Kind, c.Entry)
			if c.Difference != Unrelated {
				text += "/" + c.Difference.String()
			}
			if c.Winner != nil {
				text += "<" + c.Winner.Label()
			}
		}
		texts = append(texts, text)
	}
	return texts
}

const nearLimits = `domain: d
descriptors:
- {key: user, value: alice, DAY}
- {key: user, value: 'al*', descriptors: [{key: path, DAY}]}
- {key: user, value: bob, descriptors: [{key: path, value: /login, DAY, descriptors: [{key: method, DAY}]}]}
- {key: user, value: off, rate_limit: {unit: day, requests_per_unit: 1, enabled: false}, descriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 1, enabled: false}}]}
- {key: region, descriptors: [{key: zone, descriptors: [{key: rack, DAY}]}]}
- {key: bare, descriptors: [{key: deep, descriptors: [{key: deeper, descriptors: [{key: deepest, DAY}]}]}]}
`

func TestNearRulesNeedTheFewestChanges(t *testing.T) {
	d := compileFiles(t, withDay(nearLimits)).Domain("d")
	for _, c := range []struct{ request, want []string }{
		{[]string{"user", "Alice"}, []string{"user=alice: different_entry@0/other_case"}},
		{[]string{"user", "alcie"}, []string{"user=al* > path: missing_entry@1"}},
		{[]string{"user", "bob"}, []string{"user=bob > path=/login: missing_entry@1"}},
		{[]string{"user", "bob", "path", "/Login"}, []string{"user=bob > path=/login: different_entry@1/other_case"}},
		{[]string{"user", "bob", "method", "GET"}, []string{"user=bob > path=/login > method: missing_entry@1"}},
		{[]string{"path", "/login", "user", "bob"}, []string{"user=bob > path=/login: other_order@0"}},
		{[]string{"user", "off"}, []string{"user=off: limits_off@0"}},
		{[]string{"user", "off", "path", "x"}, []string{"user=off > path: limits_off@1"}},
		{[]string{"user", "alice", "path", "/"}, []string{"user=al* > path: losing_match@0<user=alice", "user=alice: extra_entry@1"}},
		{[]string{"user", "alice", "more", "x"}, []string{"user=alice: extra_entry@1"}},
		{[]string{"more", "x", "user", "alice"}, []string{"user=alice: extra_entry@0"}},
		{[]string{"more", "x", "user", "alice", "more", "y"}, []string{"user=alice: extra_entry@0 extra_entry@2"}},
		{[]string{"user", "alice", "more", "x", "more", "y"}, []string{"user=alice: extra_entry@1 extra_entry@2"}},
		{[]string{"a", "x", "b", "x", "user", "alice"}, []string{"user=alice: extra_entry@0 extra_entry@1"}},
		{[]string{"a", "x", "b", "x", "c", "x", "user", "alice"}, nil},
		{[]string{"user", "alice", "b", "x", "c", "x", "d", "alice"}, nil},
		{[]string{"region", "r", "zone", "z"}, []string{"region > zone > rack: missing_entry@2"}},
		{[]string{"region", "r", "rack", "z"}, []string{"region > zone > rack: missing_entry@1"}},
		{[]string{"zone", "z", "rack", "k"}, []string{"region > zone > rack: missing_entry@0"}},
		{[]string{"rack", "k", "zone", "z", "region", "r"}, []string{"region > zone > rack: other_order@0"}},
		{[]string{"region", "r", "rack", "k", "zone", "z"}, []string{"region > zone > rack: other_order@0"}},
		{[]string{"region", "r", "zone", "z", "Rack", "k"}, []string{"region > zone > rack: different_entry@2/other_case"}},
		{[]string{"Region", "r", "zone", "z", "Rack", "k"}, []string{"region > zone > rack: different_entry@0/other_case different_entry@2/other_case"}},
		{[]string{"Region", "r", "Zone", "z", "Rack", "k"}, nil},
		{[]string{"Region", "r", "zone", "z"}, []string{"region > zone > rack: different_entry@0/other_case missing_entry@2"}},
		{[]string{"bare", "x", "deep", "x"}, []string{"bare > deep > deeper > deepest: missing_entry@2 missing_entry@2"}},
		{[]string{"bare", "x", "deep", "x", "deeper", "x"}, []string{"bare > deep > deeper > deepest: missing_entry@3"}},
		{[]string{"nothing", "x", "alike", "y"}, nil},
		{[]string{"deepest", "x", "deeper", "x", "deep", "x", "bare", "x"}, []string{"bare > deep > deeper > deepest: other_order@0"}},
		{[]string{"deep", "x", "bare", "x"}, nil},
		{[]string{"bare", "x", "deeper", "x", "deepest", "x"}, []string{"bare > deep > deeper > deepest: missing_entry@1"}},
		{[]string{"bare", "x", "x", "y", "deep", "x", "deeper", "x", "deepest", "x"}, []string{"bare > deep > deeper > deepest: extra_entry@1"}},
		{[]string{"user", "bob", "path", "/login", "method", "GET", "x", "y"}, []string{"user=bob > path=/login > method: extra_entry@3"}},
		{[]string{"user", "bob", "path", "/login", "x", "y", "method", "GET"}, []string{"user=bob > path=/login > method: extra_entry@2"}},
	} {
		trace := d.Trace(entries(c.request...))
		require.Nil(t, trace.Rule, "%q", c.request)
		assert.Equal(t, c.want, describe(trace.NearRules), "%q", c.request)
	}
}

func TestNearRulesAreTheClosestThree(t *testing.T) {
	var b strings.Builder
	for i := range 60 { // more than the search finds
		fmt.Fprintf(&b, "- {key: tenant, value: Acme%02d, descriptors: [{key: user, DAY}]}\n", i)
	}
	d := compileFiles(t, withDay("domain: d\ndescriptors:\n"+b.String())).Domain("d")
	assert.Equal(t, []string{
		"tenant=Acme00 > user: missing_entry@0", "tenant=Acme01 > user: missing_entry@0", "tenant=Acme02 > user: missing_entry@0",
	}, describe(d.Trace(entries("user", "u")).NearRules))
}

func TestNearRuleIsListedOnce(t *testing.T) {
	d := compileFiles(t, withDay("domain: d\ndescriptors: [{key: a, DAY}]")).Domain("d")
	assert.Len(t, d.Trace(entries("a", "x", "a", "y")).NearRules, 1, "without the first or without the second entry")
}

func TestOtherOrdersAreTriedForFewEntries(t *testing.T) {
	keys := []string{"a", "b", "c", "d", "e", "f"}
	for n := 2; n <= len(keys); n++ {
		yaml, reversed := "{key: "+keys[n-1]+", DAY}", []string{keys[n-1], "x"}
		for i := n - 2; i >= 0; i-- {
			yaml, reversed = "{key: "+keys[i]+", descriptors: ["+yaml+"]}", append(reversed, keys[i], "x")
		}
		d := compileFiles(t, withDay("domain: d\ndescriptors: ["+yaml+"]")).Domain("d")
		isFound := strings.Contains(strings.Join(describe(d.Trace(entries(reversed...)).NearRules), ""), "other_order")
		assert.Equal(t, n <= 5, isFound, "%d entries", n)
	}
}
