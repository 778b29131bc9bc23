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

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// TestReloadUnderLoadKeepsCountersAndRejectsBadFile raises a limit while clients spend it,
// then breaks the file. failure_mode_deny turns each failed call to rls into a 500.
func TestReloadUnderLoadKeepsCountersAndRejectsBadFile(t *testing.T) {
	dir := exampleLimits(t)
	config := exampleConfig(t, "envoy.yaml", startRLS(t, dir))
	config.editFilter(func(f *ratelimitv3.RateLimit) { f.FailureModeDeny = true })
	envoy := config.start()

	// The new file replaces the old file by a rename, as editors and deployments do.
	file := filepath.Join(dir, "limits.yaml")
	replace := func(oldText, newText string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(text), oldText)
		nextFile := filepath.Join(t.TempDir(), "next")
		require.NoError(t, os.WriteFile(nextFile, []byte(strings.Replace(string(text), oldText, newText, 1)), 0o600))
		require.NoError(t, os.Rename(nextFile, file))
	}
	policy := func() string { return envoy.send(t, call{"/search?key=other"}).Get("x-ratelimit-limit") }

	awaitTimeLeft(time.Minute, 20*time.Second)
	load := envoy.startLoad(4, call{"/search?key=k1"})
	require.Equal(t, `30, 30;w=60`, policy())
	replace("requests_per_unit: 30", "requests_per_unit: 45")
	polltest.Until(t, maxWait, func() bool { return policy() == `45, 45;w=60` })
	replace("requests_per_unit: 45", "requests_per_unit: many")
	for start := time.Now(); time.Since(start) < time.Second; {
		require.Equal(t, `45, 45;w=60`, policy(), "the old limits stay in force")
	}
	answers := load.stop(t)
	assert.Equal(t, 45, answers[http.StatusOK])
	assert.Positive(t, answers[http.StatusTooManyRequests])
	assert.Len(t, answers, 2, "only 200 and 429")
}
