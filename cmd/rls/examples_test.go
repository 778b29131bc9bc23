package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/redistest"
)

// shownCommand is a command line for users, indented or in a comment.
var shownCommand = regexp.MustCompile(`(?m)^(?:    |# ).*?\brls ((?:hit|limits|counter) .*)$`)

func TestEveryCommandThatIsShownWorksWithTheExample(t *testing.T) {
	var shown []string
	for _, name := range []string{"README.md", "docs/overrides.md", "docker-compose.yml", "examples/limits.yaml"} {
		text, err := os.ReadFile("../../" + name)
		require.NoError(t, err)
		found := shownCommand.FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, found, name)
		for _, line := range found {
			shown = append(shown, line[1])
		}
	}
	var help func(*cobra.Command)
	help = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			shown = append(shown, strings.TrimPrefix(strings.TrimSpace(line), "rls "))
		}
		for _, c := range cmd.Commands() {
			help(c)
		}
	}
	help(newRoot())
	require.GreaterOrEqual(t, len(shown), 16)

	redis := redistest.Start(t)
	r := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=20s", "OVERRIDES_ENABLED=true", "ADMIN_TOKEN=" + adminToken},
		"--limits", "../../examples/limits.yaml")
	for _, line := range shown {
		more := " -a " + r.debug
		if strings.HasPrefix(line, "hit") {
			more = " -n 3 -a " + r.grpc // with --rate there is no end of it
		}
		// The shell splits it as it does for users.
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `"$0" `+line+more, os.Args[0])
		cmd.Env = []string{programEnv + "=1", "GORACE=atexit_sleep_ms=0", "ADMIN_TOKEN=" + adminToken}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != int(exitOverLimit) {
			assert.NoError(t, err, "rls %s\n%s", line, out)
		}
		assert.NotContains(t, string(out), "no limit", "rls %s", line)
	}
}
