package faults

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// programDir returns the folder of the built program.
var programDir = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "rls-faults-")
	if err != nil {
		panic(err)
	}
	return dir
})

// buildProgram returns the path of the built program.
var buildProgram = sync.OnceValues(func() (path string, err error) {
	path = filepath.Join(programDir(), "rls")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/rls")
	cmd.Dir = "../.."
	return path, cmd.Run()
})

// process is a running rls with a client.
type process struct {
	cmd    *exec.Cmd
	client rlsv3.RateLimitServiceClient
	done   chan struct{} // closed when the process has ended
}

var listening = regexp.MustCompile(`msg=listening grpc=(\S+) `)

// startProcess runs rls with these settings until the test ends.
func startProcess(t *testing.T, settings ...string) *process {
	program, err := buildProgram()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(program, "serve"), done: make(chan struct{})}
	p.cmd.Env = append([]string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
	}, settings...)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	address := make(chan string, 1)
	go func() {
		defer close(p.done)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				address <- m[1]
			}
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	select {
	case target := <-address:
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		p.client = rlsv3.NewRateLimitServiceClient(conn)
	case <-p.done:
		require.FailNow(t, "rls has ended")
	case <-time.After(30 * time.Second):
		require.FailNow(t, "rls does not listen")
	}
	return p
}

// kill ends the process as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}
