//go:build parity

package sidebyside

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// incumbentName matches what promtool says about counters that keep the name of the
// incumbent.
var incumbentName = regexp.MustCompile(`^ratelimit_\w+ counter metrics should have "_total" suffix$`)

func TestPromtoolAcceptsMetrics(t *testing.T) {
	redis := redistest.Start(t)
	ours := startRLS(t, limitsFiles{"limits": strings.ReplaceAll(limits, "QUOTA", "quota_mode: true")}, "REDIS_URL="+redis.Addr)
	for _, domain := range []string{"shop", "nowhere"} {
		for _, key := range []string{"plain", "zero", "value"} {
			_, err := ours.call(t, request(domain, key, "x\n\"1\\"))
			require.NoError(t, err)
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		promtool, err = filepath.Abs(filepath.Join(root, ".tools/promtool"))
		require.NoError(t, err)
	}
	check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	check.Stdin = strings.NewReader(ours.get(t, "/metrics"))
	out, err := check.CombinedOutput()
	if _, hasProblems := err.(*exec.ExitError); !hasProblems { //nolint:errorlint // never wrapped
		require.NoError(t, err, "make parity installs promtool")
	}
	for line := range strings.Lines(string(out)) {
		assert.Regexp(t, incumbentName, strings.TrimSpace(line))
	}
}
