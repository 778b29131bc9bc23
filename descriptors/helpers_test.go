package descriptors

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/require"
)

// entries makes a request descriptor of keys and values in turn.
func entries(kv ...string) []*ratelimitv3.RateLimitDescriptor_Entry {
	var es []*ratelimitv3.RateLimitDescriptor_Entry
	for i := 0; i+1 < len(kv); i += 2 {
		es = append(es, &ratelimitv3.RateLimitDescriptor_Entry{Key: kv[i], Value: kv[i+1]})
	}
	return es
}

// compile makes a Config of one file that must be right.
func compile(t testing.TB, yaml string) *Config {
	t.Helper()
	c, err := Compile([]File{{"limits.yaml", []byte(yaml)}}, Options{})
	require.NoError(t, err)
	return c
}
