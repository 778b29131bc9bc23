//go:build release

package release

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var emptyCaches = flag.Bool("empty-caches", false, "build twice from nothing in the test of reproducible builds")

// dist is the folder with the files of a release of this machine's platform.
var dist string

func TestMain(m *testing.M) {
	flag.Parse()
	folder, err := os.MkdirTemp("", "rls-release")
	if err != nil {
		panic(err)
	}
	dist = filepath.Join(folder, "dist")
	build := buildRelease(repository, dist)
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	code := 1
	if err := build.Run(); err == nil {
		code = m.Run()
	}
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// buildRelease returns a command that builds a release of this machine's platform.
func buildRelease(source, dist string) *exec.Cmd {
	build := exec.Command("deploy/scripts/release", "linux/"+runtime.GOARCH)
	build.Dir = source
	build.Env = append(os.Environ(), "DIST="+dist)
	return build
}

// distFile returns the path of the file of the release with this suffix.
func distFile(t *testing.T, suffix string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dist, "*"+suffix))
	require.NoError(t, err)
	require.Len(t, files, 1, suffix)
	return files[0]
}

// shell runs a script and returns its output.
func shell(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

func TestReleaseHasAllFilesOfAPlatform(t *testing.T) {
	shell(t, dist, "sha256sum --check --strict checksums.txt")
	checksums, err := os.ReadFile(filepath.Join(dist, "checksums.txt"))
	require.NoError(t, err)
	for _, suffix := range []string{".tar.gz", ".deb", ".rpm", ".cdx.json"} {
		assert.Contains(t, string(checksums), filepath.Base(distFile(t, suffix)))
	}
	content := shell(t, dist, "tar -tzf "+distFile(t, ".tar.gz"))
	for _, name := range []string{"rls", "LICENSE", "README.md", "CHANGELOG.md", "THIRD_PARTY.txt", "examples/limits.yaml", "systemd/rls.service", "systemd/rls.env"} {
		assert.Regexp(t, `(?m)^rls_[^/]+/`+name+`$`, content)
	}
}

func TestSBOMListsTheModulesOfTheProgram(t *testing.T) {
	sbom, err := os.ReadFile(distFile(t, ".cdx.json"))
	require.NoError(t, err)
	for _, want := range []string{`"bomFormat": "CycloneDX"`, `"pkg:golang/google.golang.org/grpc@v`, `"pkg:golang/github.com/redis/go-redis/v9@v`} {
		assert.Contains(t, string(sbom), want)
	}
	assert.NotContains(t, string(sbom), "stretchr/testify", "the program has no test helpers")
}

// TestReleaseIsReproducible builds a clone in another folder.
func TestReleaseIsReproducible(t *testing.T) {
	clone := filepath.Join(t.TempDir(), "a-clone-with-another-name")
	shell(t, repository, "git clone --quiet . "+clone)
	if uncommittedChanges := shell(t, repository, "git status --porcelain"); uncommittedChanges != "" {
		t.Logf("the clone has no changes that are not committed:\n%s", uncommittedChanges)
	}
	firstDist, secondDist := dist, filepath.Join(t.TempDir(), "second")
	builds := map[string]string{secondDist: clone}
	if *emptyCaches {
		firstDist = filepath.Join(t.TempDir(), "first")
		builds[firstDist] = repository
	}
	for dist, source := range builds {
		build := buildRelease(source, dist)
		if *emptyCaches {
			build.Env = append(build.Env, "GOCACHE="+t.TempDir())
		}
		out, err := build.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	checksums := func(folder string) string {
		text, err := os.ReadFile(filepath.Join(folder, "checksums.txt"))
		require.NoError(t, err)
		return string(text)
	}
	assert.Equal(t, checksums(firstDist), checksums(secondDist))
}

// versionOf returns the version in the name of the archive.
func versionOf(t *testing.T) string {
	name := strings.TrimPrefix(filepath.Base(distFile(t, ".tar.gz")), "rls_")
	version, _, found := strings.Cut(name, "_linux_")
	require.True(t, found)
	return "v" + version
}
