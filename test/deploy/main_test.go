package deploy

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// update makes the tests write the files that they would compare.
var update = flag.Bool("update", false, "write the golden files and the README of the chart")

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if programFolder != "" {
		_ = os.RemoveAll(programFolder)
	}
	os.Exit(code)
}

var programFolder string // empty before the first build

// program returns the path of the program that the image has. The first call runs the build
// command of the Dockerfile.
func program(t *testing.T) string {
	t.Helper()
	path, err := buildProgram()
	require.NoError(t, err)
	return path
}

var buildProgram = sync.OnceValues(func() (string, error) {
	dockerfile, err := os.ReadFile(path("Dockerfile"))
	if err != nil {
		return "", err
	}
	command := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*)$`).FindStringSubmatch(string(dockerfile))
	if command == nil {
		return "", fmt.Errorf("Dockerfile: got no build command, want RUN CGO_ENABLED=0 go build")
	}
	if programFolder, err = os.MkdirTemp("", "rls-deploy"); err != nil {
		return "", err
	}
	binary := filepath.Join(programFolder, "ratelimit")
	build := exec.Command("/bin/sh", "-c", strings.Replace(command[1], "-o /rls", "-o "+binary, 1))
	build.Dir = path(".")
	build.Env = append(os.Environ(), "VERSION=v1.2.3")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	// By the name ratelimit, the program takes no arguments.
	return binary, os.Symlink(binary, filepath.Join(programFolder, "rls"))
})

// rls returns the path of the program by the name under which it takes arguments.
func rls(t *testing.T) string {
	t.Helper()
	return filepath.Join(filepath.Dir(program(t)), "rls")
}

// assertGolden compares text with a file of testdata. With -update, it writes the file.
func assertGolden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "%s: go test ./test/deploy -update writes it again", file)
}
