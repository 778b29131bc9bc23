package override

import (
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// limits is a Set, and the Config that it compiles to.
type limits struct {
	*descriptors.Config
	set *limitsfile.Set
}

// compile compiles one valid limits file.
func compile(t testing.TB, yaml string) limits {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(yaml)}}, limitsfile.Options{})
	require.NoError(t, err)
	return limits{descriptors.Compile(set), set}
}

// withOverrides returns l with overrides, and the outcome of each.
func (l limits) withOverrides(overrides ...*Override) (limits, []outcome) {
	set, outcomes := apply(l.set, overrides)
	return limits{descriptors.Compile(set), set}, outcomes
}

// parseOverride parses a valid override.
func parseOverride(t testing.TB, target, value string) *Override {
	t.Helper()
	o, err := Parse(target, []byte(value))
	require.NoError(t, err)
	return o
}

// entries returns a request descriptor of keys and values in turn.
func entries(keysAndValues ...string) []*ratelimitv3.RateLimitDescriptor_Entry {
	var es []*ratelimitv3.RateLimitDescriptor_Entry
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		es = append(es, &ratelimitv3.RateLimitDescriptor_Entry{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return es
}

// matchedLimits returns the limits that a request of keys and values matches, in words.
func matchedLimits(c *descriptors.Config, domain string, keysAndValues ...string) string {
	rule := c.Domain(domain).Match(entries(keysAndValues...))
	if rule == nil {
		return "nothing"
	}
	var texts []string
	for _, l := range rule.Limits {
		if l.Unlimited {
			texts = append(texts, "unlimited")
		} else {
			texts = append(texts, l.Limit.String())
		}
	}
	text := strings.Join(texts, " and ")
	if rule.ShadowMode {
		text += ", shadow"
	}
	return text
}
