package descriptors

import (
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// entries returns a request descriptor of keys and values in turn.
func entries(kv ...string) []*ratelimitv3.RateLimitDescriptor_Entry {
	var es []*ratelimitv3.RateLimitDescriptor_Entry
	for i := 0; i+1 < len(kv); i += 2 {
		es = append(es, &ratelimitv3.RateLimitDescriptor_Entry{Key: kv[i], Value: kv[i+1]})
	}
	return es
}

// compileFiles compiles limits files that must be right.
func compileFiles(t testing.TB, files ...string) *Config {
	t.Helper()
	var all []limitsfile.File
	for _, yaml := range files {
		all = append(all, limitsfile.File{Name: "limits.yaml", Data: []byte(yaml)})
	}
	set, err := limitsfile.Parse(all, limitsfile.Options{})
	require.NoError(t, err)
	return Compile(set)
}

const tenAMinute = "rate_limit: {unit: minute, requests_per_unit: 10}"

// one returns a file with one descriptor, whose fields are given.
func one(fields string) string {
	return "domain: d\ndescriptors:\n  - key: k\n    " + strings.ReplaceAll(fields, "\n", "\n    ") + "\n"
}
