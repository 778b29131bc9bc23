//go:build release

package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// finalStage returns the lines of the Dockerfile after its last FROM.
func finalStage(t *testing.T) []string {
	t.Helper()
	dockerfile := readFile(t, "Dockerfile")
	return strings.Split(dockerfile[strings.LastIndex(dockerfile, "\nFROM "):], "\n")
}

// imageFiles runs the commands of the Dockerfile that make files, and copies the files into the
// root of an image, without the files of the base image. It returns the root. The folder build
// takes the place of the root of the first stage.
func imageFiles(t *testing.T) string {
	t.Helper()
	build, root := t.TempDir(), t.TempDir()
	source, err := filepath.Abs(repository)
	require.NoError(t, err)
	for _, command := range regexp.MustCompile(`(?m)^RUN (.*(?:-o|>) /.*)$`).FindAllStringSubmatch(readFile(t, "Dockerfile"), -1) {
		script := strings.NewReplacer("-o /rls", "-o "+build+"/rls", "> /THIRD_PARTY.txt", "> "+build+"/THIRD_PARTY.txt").Replace(command[1])
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "VERSION="+versionOf(t))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	for _, line := range finalStage(t) {
		paths, isCopy := strings.CutPrefix(line, "COPY --from=build ")
		if !isCopy {
			continue
		}
		files := strings.Fields(paths)
		target := filepath.Join(root, files[len(files)-1])
		if strings.HasSuffix(paths, "/") {
			target += "/"
		}
		require.NoError(t, os.MkdirAll(target[:strings.LastIndex(target, "/")], 0o755))
		for _, file := range files[:len(files)-1] {
			from := filepath.Join(build, file)
			if name, isSource := strings.CutPrefix(file, "/src/"); isSource {
				from = filepath.Join(source, name)
			}
			shell(t, root, "cp "+from+" "+target)
		}
	}
	return root
}

func TestImageHasProgramOfTheRelease(t *testing.T) {
	root, archive := imageFiles(t), t.TempDir()
	shell(t, archive, "tar --strip-components=1 -xzf "+distFile(t, ".tar.gz"))
	shell(t, archive, "cmp rls "+root+"/bin/rls && cmp rls "+root+"/bin/ratelimit")
	shell(t, archive, "cmp THIRD_PARTY.txt "+root+"/usr/share/doc/rls/THIRD_PARTY.txt && cmp LICENSE "+root+"/usr/share/doc/rls/LICENSE")
}

// TestImageRunsReadOnlyAsItsUser runs the program in a root with the files of the image only.
func TestImageRunsReadOnlyAsItsUser(t *testing.T) {
	root := imageFiles(t)
	shell(t, root, "mkdir limits && cp "+mustAbs(t, "deploy/package/limits.yaml")+" limits && chmod -R a+rX .")
	out := runInFreshRoot(t, `
mount --bind `+root+` /mnt
mount -o remount,bind,ro /mnt
touch /mnt/limits/file 2>/dev/null && echo "the root is writable"
env -i LIMITS_PATH=/limits /usr/bin/setpriv --no-new-privs "$(command -v chroot)" --userspec=65532:65532 /mnt /bin/rls 2>/tmp/log &
service=$!
await_server /mnt/bin/rls
ps -o user= -p $service
/mnt/bin/rls hit -d example remote_address=192.0.2.1 --quiet -n 12 || true
kill -TERM $service
wait $service
`)
	assert.NotContains(t, out, "the root is writable")
	assert.Contains(t, out, "65532\n")
	assert.Contains(t, out, "10 OK, 2 OVER_LIMIT")
}

func mustAbs(t *testing.T, name string) string {
	path, err := filepath.Abs(filepath.Join(repository, name))
	require.NoError(t, err)
	return path
}
