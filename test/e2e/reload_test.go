//go:build e2e

package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/polltest"
)

// TestLimitsChangeUnderLoad raises a limit while clients use it up, and then breaks
// the file. failure_mode_deny shows any call to rls that fails as a 500.
func TestLimitsChangeUnderLoad(t *testing.T) {
	dir := exampleLimits(t)
	c := example(t, "envoy.yaml", startRLS(t, dir))
	c.filter(func(f *ratelimitv3.RateLimit) { f.FailureModeDeny = true })
	e := c.start()

	// The new file takes the old one's place as editors and deployments do it.
	file := filepath.Join(dir, "limits.yaml")
	replace := func(have, put string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(text), have)
		next := filepath.Join(t.TempDir(), "next")
		require.NoError(t, os.WriteFile(next, []byte(strings.Replace(string(text), have, put, 1)), 0o600))
		require.NoError(t, os.Rename(next, file))
	}
	policy := func() string { return e.send(t, call{"/search?key=other"}).Get("x-ratelimit-limit") }

	room(time.Minute, 20*time.Second)
	load := e.load(4, call{"/search?key=k1"})
	require.Equal(t, `30, 30;w=60`, policy())
	replace("requests_per_unit: 30", "requests_per_unit: 45")
	polltest.Until(t, ample, func() bool { return policy() == `45, 45;w=60` })
	replace("requests_per_unit: 45", "requests_per_unit: many")
	for begin := time.Now(); time.Since(begin) < time.Second; {
		require.Equal(t, `45, 45;w=60`, policy(), "what is wrong isn't taken")
	}
	seen := load.stop(t)
	assert.Equal(t, 45, seen[http.StatusOK])
	assert.Positive(t, seen[http.StatusTooManyRequests])
	assert.Len(t, seen, 2, "nothing else")
}
