//go:build upgrade

package upgrade

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// lastVersion is the commit of the last version. A release sets it to the commit of its tag.
const lastVersion = "39975c34e24e9cfe2397cac3004e47a8dca883eb"

const adminToken = "upgrade-test"

// buildLast builds the last version and returns the path of its program.
func buildLast(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	archive := exec.CommandContext(t.Context(), "git", "archive", "--format=tar", "--output", filepath.Join(dir, "source.tar"), lastVersion)
	archive.Dir = "../.."
	out, err := archive.CombinedOutput()
	require.NoError(t, err, "the last version is not in the history; in a shallow clone, run: git fetch --unshallow\n%s", out)
	out, err = exec.CommandContext(t.Context(), "tar", "-xf", filepath.Join(dir, "source.tar"), "-C", dir).CombinedOutput()
	require.NoError(t, err, string(out))
	return buildProgram(t, dir)
}

// buildProgram builds the program of a folder with the source and returns its path.
func buildProgram(t *testing.T, source string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "rls")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, "./cmd/rls")
	build.Dir = source
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// process is a running service.
type process struct {
	rlsv3.RateLimitServiceClient
	program, debugAddr string
	stop               func()
}

var listening = regexp.MustCompile(`msg=listening grpc=(\S+) http=\S+ debug=(\S+)`)

// startProcess runs the program and returns when it listens.
func startProcess(t *testing.T, program, redisAddr, limits string) *process {
	t.Helper()
	cmd := exec.Command(program, "serve", "--limits", limits)
	cmd.Env = append(os.Environ(),
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_PORT=0",
		"REDIS_URL="+redisAddr, "REDIS_TIMEOUT=10s", "OVERRIDES_ENABLED=true", "ADMIN_TOKEN="+adminToken, "DRAIN_DELAY=0s")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	addresses, logOfEndedProcess := make(chan []string, 1), make(chan string, 1)
	go func() {
		var log strings.Builder
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			log.WriteString(lines.Text() + "\n")
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				addresses <- m
			}
		}
		_ = cmd.Wait()
		logOfEndedProcess <- log.String()
	}()
	p := &process{program: program}
	select {
	case m := <-addresses:
		p.debugAddr = m[2]
		conn, err := grpc.NewClient(m[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		p.RateLimitServiceClient = rlsv3.NewRateLimitServiceClient(conn)
		isStopped := false
		p.stop = func() {
			if isStopped {
				return
			}
			isStopped = true
			_ = conn.Close()
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-logOfEndedProcess
		}
		t.Cleanup(p.stop)
	case log := <-logOfEndedProcess:
		require.FailNow(t, "the service ended", log)
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		require.FailNow(t, "the service does not listen", <-logOfEndedProcess)
	}
	return p
}

// limits runs a command of rls limits for the replica.
func (p *process) limits(t *testing.T, args ...string) {
	t.Helper()
	help, _ := exec.CommandContext(t.Context(), p.program, "limits", "--help").Output()
	flag := "--admin"
	if !strings.Contains(string(help), flag) {
		flag = "--addr" // of the last version
	}
	cmd := exec.CommandContext(t.Context(), p.program, append([]string{"limits", args[0], flag, p.debugAddr}, args[1:]...)...)
	cmd.Env = append(os.Environ(), "ADMIN_TOKEN="+adminToken)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
