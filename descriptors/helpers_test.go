package descriptors

import (
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// entries returns the entries of a request descriptor. The keys and values are in turn.
func entries(keysAndValues ...string) []*ratelimitv3.RateLimitDescriptor_Entry {
	var entryList []*ratelimitv3.RateLimitDescriptor_Entry
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		entryList = append(entryList, &ratelimitv3.RateLimitDescriptor_Entry{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return entryList
}

// compileFiles compiles valid limits files.
func compileFiles(t testing.TB, files ...string) *Config {
	t.Helper()
	var limitsFiles []limitsfile.File
	for _, yaml := range files {
		limitsFiles = append(limitsFiles, limitsfile.File{Name: "limits.yaml", Data: []byte(yaml)})
	}
	set, err := limitsfile.Parse(limitsFiles, limitsfile.Options{})
	require.NoError(t, err)
	return Compile(set)
}

const tenAMinute = "rate_limit: {unit: minute, requests_per_unit: 10}"

// oneDescriptor returns a limits file with one descriptor, which has the key k and these fields.
func oneDescriptor(fields string) string {
	return "domain: d\ndescriptors:\n  - key: k\n    " + strings.ReplaceAll(fields, "\n", "\n    ") + "\n"
}
