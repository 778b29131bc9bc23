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

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// commandInComment matches a comment that shows a command.
var commandInComment = regexp.MustCompile(`(?m)^ *# .*?\brls ((?:hit|acquire|limits|counter|explain) .*)$`)

func TestDocumentedCommandsWorkWithExampleLimits(t *testing.T) {
	t.Parallel()
	var commands []string
	for _, name := range []string{"docker-compose.yml", "examples/limits.yaml"} {
		text, err := os.ReadFile("../../" + name)
		require.NoError(t, err)
		matches := commandInComment.FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, matches, name)
		for _, line := range matches {
			commands = append(commands, line[1])
		}
	}
	var addExamples func(*cobra.Command)
	addExamples = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			if command, ok := strings.CutPrefix(strings.TrimSpace(line), "rls "); ok {
				commands = append(commands, command)
			}
		}
		for _, c := range cmd.Commands() {
			addExamples(c)
		}
	}
	addExamples(newRoot())
	require.GreaterOrEqual(t, len(commands), 10)

	folder := t.TempDir() // a command can write a file
	require.NoError(t, os.CopyFS(folder+"/examples", os.DirFS("../../examples")))
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=20s", "OVERRIDES_ENABLED=true", "ADMIN_TOKEN=" + adminToken},
		"--limits", "../../examples/limits.yaml")
	for _, line := range commands {
		if strings.HasPrefix(line, "tail") || strings.HasPrefix(line, "top") {
			continue // the command runs until it is interrupted
		}
		flags := " --admin " + service.debug
		switch {
		case strings.HasPrefix(line, "hit"):
			flags = " -n 3 -a " + service.grpc // with --rate the command would not end
		case strings.HasPrefix(line, "acquire"):
			line, _, _ = strings.Cut(line, " -- ") // the program of the user is not here
			flags = " -a " + service.grpc + " -- true"
		case strings.Contains(line, "--limits"), strings.HasPrefix(line, "test"), strings.HasPrefix(line, "schema"):
			flags = "" // the command asks no service
		}
		// A shell splits the line, as for users.
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `"$0" `+line+flags, os.Args[0])
		cmd.Dir = folder
		cmd.Env = []string{programEnv + "=1", "GORACE=atexit_sleep_ms=0", "ADMIN_TOKEN=" + adminToken, "PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != int(exitOverLimit) {
			assert.NoError(t, err, "rls %s\n%s", line, out)
		}
		assert.NotContains(t, string(out), "no rule limits", "rls %s", line)
	}
}
