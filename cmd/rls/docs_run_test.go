package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// reader runs the blocks of a page as its reader would: one after the other, in one folder, with
// rls, curl and redis-cli. The service and Redis have other addresses than in the page.
type reader struct {
	folder string
	env    []string
	ports  *strings.Replacer // addresses of the page to addresses of the test
}

// startCommand is the program rls of a reader. `rls serve` ends the service that ran before, and
// returns when the new service listens. A command without an end is stopped after a second. A denied
// hit and a difference between limits are no errors.
const startCommand = `#!/usr/bin/env bash
program() { RLS_TEST_PROGRAM=1 GORACE=atexit_sleep_ms=0 "$@"; }
address=
case "${1:-}" in
hit|acquire) address=$READER_GRPC flag=--addr ;;
explain|limits|reset|tail|top) address=$READER_DEBUG flag=--admin ;;
serve)
  stop-service
  : >"$READER_STATE/log" # the loop below must not read the log of the service before
  [ -z "${REDIS_URL:-}" ] || export REDIS_TIMEOUT=${REDIS_TIMEOUT:-20s} # for a slow machine
  RLS_TEST_PROGRAM=1 GORACE=atexit_sleep_ms=0 "$READER_PROGRAM" "$@" >"$READER_STATE/out" 2>"$READER_STATE/log" &
  service=$!
  echo $service >"$READER_STATE/pid"
  (while kill -0 "$READER_TEST" && kill -0 $service; do sleep 1; done; kill $service) >/dev/null 2>&1 & # the service ends with the test
  for _ in {1..600}; do
    grep -qE 'msg"?[=:]"?listening' "$READER_STATE/log" && exit 0
    kill -0 $service 2>/dev/null || break
    sleep 0.05
  done
  cat "$READER_STATE/log" >&2
  exit 1 ;;
esac
case " $* " in *" -a "*|*" --addr "*|*" --admin "*|*" --limits "*|*" --help "*) address= ;; esac
arguments=("$@")
[ -n "$address" ] && arguments=("$1" "$flag" "$address" "${@:2}")
case "${1:-}" in hit|limits|reset) arguments+=(--timeout 20s) ;; esac # for a slow machine
case "${1:-} $*" in
tail*|"top top") program timeout 1 "$READER_PROGRAM" "${arguments[@]}"; code=$?; [ $code = 124 ] && code=0 ;;
*) program "$READER_PROGRAM" "${arguments[@]}"; code=$? ;;
esac
case "${1:-}" in hit|diff|acquire) [ $code -ge 2 ] && code=0 ;; esac
exit $code
`

// stopCommand ends the service of a reader.
const stopCommand = `#!/usr/bin/env bash
[ -f "$READER_STATE/pid" ] || exit 0
pid=$(cat "$READER_STATE/pid")
rm "$READER_STATE/pid"
kill "$pid" 2>/dev/null
while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
`

// curlCommand ends streams after a second. It sends the token of the reader, as a browser that is
// signed in.
const curlCommand = `#!/usr/bin/env bash
PATH=${PATH#*:}
case "$*" in *Authorization*) ;; *"$READER_DEBUG"*) set -- -H "Authorization: Bearer ${ADMIN_TOKEN#*:}" "$@" ;; esac
case " $* " in
*" -N "*) timeout 1 curl -sS "$@"; [ $? = 124 ] ;;
*) exec curl -sS --fail-with-body --max-time 20 "$@" ;;
esac
`

// newReader returns the reader of the page with this number. A service with examples/limits.yaml
// runs, as after the quick start.
func newReader(t *testing.T, number int) *reader {
	t.Helper()
	pageReader := &reader{folder: t.TempDir()}
	state, bin := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"rls": startCommand, "stop-service": stopCommand, "curl": curlCommand} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700))
	}
	require.NoError(t, os.CopyFS(filepath.Join(pageReader.folder, "examples"), os.DirFS("../../examples")))
	require.NoError(t, os.Mkdir(filepath.Join(pageReader.folder, "bin"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(bin, "rls"), filepath.Join(pageReader.folder, "bin/rls")))
	require.NoError(t, os.Link(filepath.Join(pageReader.folder, "examples/limits.yaml"), filepath.Join(pageReader.folder, "limits.yaml")))

	// Each page has a loopback address of its own, so that pages can run at once.
	host := fmt.Sprintf("127.%d.%d.%d", 64+os.Getpid()%128, 1+os.Getpid()/128%250, 1+number)
	redis := redistest.Start(t)
	redisHost, redisPort, _ := strings.Cut(redis.Addr, ":")
	grpc, http, debug, metrics := freePort(t, host), freePort(t, host), freePort(t, host), freePort(t, host)
	pageReader.ports = strings.NewReplacer(
		"localhost:8081", host+":"+grpc, "localhost:8080", host+":"+http, "localhost:6070", host+":"+debug, "localhost:9090", host+":"+metrics,
		"localhost:6379", redis.Addr, "127.0.0.1", host,
	)
	program, err := filepath.Abs(os.Args[0])
	require.NoError(t, err)
	pageReader.env = append(os.Environ(),
		"PATH="+bin+":"+os.Getenv("PATH"), "HOME="+pageReader.folder, "NO_COLOR=1",
		"READER_PROGRAM="+program, "READER_TEST="+strconv.Itoa(os.Getpid()), "READER_STATE="+state, "READER_GRPC="+host+":"+grpc, "READER_DEBUG="+host+":"+debug,
		"GRPC_HOST="+host, "GRPC_PORT="+grpc, "HOST="+host, "PORT="+http, "DEBUG_HOST="+host, "DEBUG_PORT="+debug, "PROMETHEUS_ADDR="+host+":"+metrics,
		"DEBUG_NAMES="+host, "SOURCE_POLL_INTERVAL=100ms", "DRAIN_DELAY=0s",
		"LIMITS_PATH=limits.yaml", "ADMIN_TOKEN=alice:"+adminToken,
		"READER_REDIS_HOST="+redisHost, "READER_REDIS_PORT="+redisPort,
	)
	t.Cleanup(func() { pageReader.command("stop-service; cat redis/*.pid | xargs -r kill").Run() })
	out, err := pageReader.run("git init -q . && git add limits.yaml && git -c user.name=reader -c user.email=reader@example.com commit -qm limits\n" +
		"OVERRIDES_ENABLED=true REDIS_URL=localhost:6379 rls serve")
	require.NoError(t, err, out)
	return pageReader
}

// freePort returns a port of the host that no program uses.
func freePort(t *testing.T, host string) string {
	t.Helper()
	listener, err := net.Listen("tcp", host+":0")
	require.NoError(t, err)
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

// command returns a shell that runs a script in the folder of the reader.
func (r *reader) command(script string) *exec.Cmd {
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", r.ports.Replace(script))
	cmd.Dir, cmd.Env = r.folder, r.env
	cmd.WaitDelay = 20 * time.Second // programs in the background keep no pipe open
	return cmd
}

// write writes a file of the page.
func (r *reader) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(r.folder, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(r.ports.Replace(text)), 0o600))
}

// run runs a block and returns what it prints. As in a terminal, the folder and the variables of a
// block stay for the next block.
func (r *reader) run(script string) (string, error) {
	out, err := r.command(`redis-cli() { command redis-cli -h $READER_REDIS_HOST -p $READER_REDIS_PORT "$@"; }
terminal=$READER_STATE/terminal
[ ! -f "$terminal" ] || source "$terminal"
` + script + `
{ export -p; echo "cd '$PWD'"; } >"$terminal"`).CombinedOutput()
	return string(out), err
}

func TestCommandsInDocsRun(t *testing.T) {
	t.Parallel()
	for i, page := range docPages(t) {
		blocks, _ := docBlocks(t, page)
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			var pageReader *reader
			output := ""
			for _, b := range blocks {
				switch {
				case strings.HasPrefix(b.marker, "file: "):
					if pageReader == nil {
						pageReader = newReader(t, i)
					}
					pageReader.write(t, strings.TrimPrefix(b.marker, "file: "), b.text)
				case b.isShell() && b.reason() == "":
					if pageReader == nil {
						pageReader = newReader(t, i)
					}
					var err error
					output, err = pageReader.run(b.text)
					if !assert.NoError(t, err, "%s:%d\n%s\n%s", page, b.line, b.text, output) {
						return // later blocks need this one
					}
				case b.marker == "prints":
					assertPrinted(t, fmt.Sprintf("%s:%d", page, b.line), b.text, output)
				}
			}
		})
	}
}

// figure matches a number that differs between runs: a count, a time, a duration or an address.
var figure = regexp.MustCompile(`[0-9][0-9.:]*(µs|ms|s|m|h)*`)

// assertPrinted checks that each line that a page shows was printed. Figures can differ. A line
// with … stands for any lines.
func assertPrinted(t *testing.T, place, wantOutput, output string) {
	t.Helper()
	output = figure.ReplaceAllString(output, "0")
	for line := range strings.Lines(wantOutput) {
		line = strings.TrimSpace(line)
		if !strings.Contains(line, "…") {
			assert.Contains(t, output, figure.ReplaceAllString(line, "0"), place)
		}
	}
}
