//go:build release

package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// enterRoot makes a copy of this machine that takes all changes and vanishes at the end. It
// runs a script in the copy as root, with a network of its own.
const enterRoot = `
mount -t tmpfs none "$1"
mkdir "$1/changes" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
ip link set lo up
exec chroot "$1/root" sh -eu "$2"
`

// runInFreshRoot runs a script in a copy of this machine and returns its output. The script can
// read the files of dist.
func runInFreshRoot(t *testing.T, script string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(file, []byte(awaitServer+script), 0o755))
	args := []string{"unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-euc", enterRoot, "enter", t.TempDir(), file}
	if os.Geteuid() != 0 {
		args = append([]string{"sudo", "-n"}, args...)
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// awaitServer is a function of the shell. It waits until the service answers the program in its
// argument.
const awaitServer = `
await_server() {
  for attempt in $(seq 300); do
    "$1" hit -d example remote_address=192.0.2.9 >/dev/null 2>&1 && return
    sleep 0.1
  done
  echo "the service does not answer"
  cat /tmp/log
  exit 1
}
`
