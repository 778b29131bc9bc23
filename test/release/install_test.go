//go:build release

package release

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runUnit is a script that starts the service as its unit does, sends 12 calls and stops it.
const runUnit = `
run_unit() {
  settings=$(grep -v '^#' /etc/rls/rls.env)
  program=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/rls.service)
  env -i $settings setpriv --reuid=rls --regid=rls --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all $program 2>/tmp/log &
  service=$!
  await_server /usr/bin/rls
  echo "process: $(ps -o user= -p $service)"
  /usr/bin/rls hit -d example remote_address=192.0.2.1 --quiet -n 12 || true
  kill -TERM $service
  wait $service
  echo "exit code $?"
}
files() { stat -c '%U:%G %a %n' /usr/bin/rls /etc/rls /etc/rls/rls.env /etc/rls/limits/limits.yaml /usr/lib/systemd/system/rls.service /usr/share/man/man1/rls.1.gz /usr/share/bash-completion/completions/rls; readlink /usr/bin/rlsd; }
`

const installedFiles = `root:root 755 /usr/bin/rls
root:root 755 /etc/rls
root:rls 640 /etc/rls/rls.env
root:root 644 /etc/rls/limits/limits.yaml
root:root 644 /usr/lib/systemd/system/rls.service
root:root 644 /usr/share/man/man1/rls.1.gz
root:root 644 /usr/share/bash-completion/completions/rls
/usr/bin/rls
`

func TestDebInstallsServiceThatRunsAsItsUser(t *testing.T) {
	out := runInFreshRoot(t, runUnit+`
dpkg --install `+distFile(t, ".deb")+`
getent passwd rls
files
/usr/bin/rls --version
/usr/bin/rls check /etc/rls/limits
run_unit
`)
	assert.Regexp(t, `(?m)^rls:x:\d+:\d+:rls rate-limit service:/nonexistent:/usr/sbin/nologin$`, out)
	assert.Contains(t, out, installedFiles)
	assert.Contains(t, out, "rls "+versionOf(t)+"\ncommit ")
	assert.Contains(t, out, "process: rls\n")
	assert.Contains(t, out, "10 OK, 2 OVER_LIMIT")
	assert.Contains(t, out, "exit code 0\n")
}

func TestDebKeepsChangedSettingsUntilItIsPurged(t *testing.T) {
	deb := distFile(t, ".deb")
	out := runInFreshRoot(t, runUnit+`
dpkg --install `+deb+`
echo 'LOG_LEVEL=warn' >> /etc/rls/rls.env
chmod 0600 /etc/rls/rls.env
dpkg --install `+deb+`
files
tail -1 /etc/rls/rls.env
dpkg --remove rls
ls /usr/bin/rls || true
test -f /etc/rls/rls.env && echo 'the removal has kept the settings'
dpkg --purge rls
ls -d /etc/rls /etc/rls/rls.env || true
getent passwd rls
`)
	assert.Contains(t, out, installedFiles, "an upgrade sets the rights again")
	assert.Contains(t, out, "\nLOG_LEVEL=warn\n")
	assert.Contains(t, out, "cannot access '/usr/bin/rls'")
	assert.Contains(t, out, "the removal has kept the settings\n")
	assert.Contains(t, out, "cannot access '/etc/rls': No such file or directory")
	assert.Regexp(t, `(?m)^rls:x:`, out, "the user stays")
}

func TestRPMInstallsServiceThatRunsAsItsUser(t *testing.T) {
	// This machine has no database of rpms, so the packages that the rpm needs are unknown.
	out := runInFreshRoot(t, runUnit+`
rpm --install --nodeps `+distFile(t, ".rpm")+`
getent passwd rls
files
run_unit
rpm --erase rls
ls /usr/bin/rls || true
`)
	assert.Contains(t, out, installedFiles)
	assert.Contains(t, out, "process: rls\n")
	assert.Contains(t, out, "10 OK, 2 OVER_LIMIT")
	assert.Contains(t, out, "cannot access '/usr/bin/rls'")
}

// maxExposure is the largest exposure of the unit. systemd calls a unit with less than 2.5 safe.
const maxExposure = 2.0

func TestUnitIsValidAndSandboxed(t *testing.T) {
	out := runInFreshRoot(t, `
dpkg --install `+distFile(t, ".deb")+` >/dev/null
systemd-analyze verify --man=no --recursive-errors=no /usr/lib/systemd/system/rls.service
systemd-analyze security --offline=true --no-pager /usr/lib/systemd/system/rls.service
`)
	match := regexp.MustCompile(`Overall exposure level for rls\.service: ([\d.]+)`).FindStringSubmatch(out)
	require.NotNil(t, match, out)
	exposure, err := strconv.ParseFloat(match[1], 64)
	require.NoError(t, err)
	assert.LessOrEqual(t, exposure, maxExposure, out)
	findings, _, _ := strings.Cut(out, "NAME")
	assert.Empty(t, strings.TrimSpace(findings), "systemd-analyze verify has findings")
}
