package faults

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
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
	t      *testing.T
	cmd    *exec.Cmd
	client rlsv3.RateLimitServiceClient
	debug  string        // address of the debug listener
	done   chan struct{} // closed when the process has ended

	mu       sync.Mutex // guards the field below
	logLines []string
}

var listening = regexp.MustCompile(`msg=listening grpc=(\S+) http=\S+ debug=(\S+)`)

// startProcess runs rls with these settings until the test ends.
func startProcess(t *testing.T, settings ...string) *process {
	program, err := buildProgram()
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.Command(program, "serve"), done: make(chan struct{})}
	p.cmd.Env = append([]string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
	}, settings...)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	addresses := make(chan []string, 1)
	go func() {
		defer close(p.done)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			p.addLog(lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				addresses <- m[1:]
			}
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	select {
	case a := <-addresses:
		p.debug = a[1]
		conn, err := grpc.NewClient(a[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		p.client = rlsv3.NewRateLimitServiceClient(conn)
	case <-p.done:
		require.FailNow(t, "rls has ended", p.log())
	case <-time.After(30 * time.Second):
		require.FailNow(t, "rls does not listen", p.log())
	}
	return p
}

// kill ends the process as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) addLog(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.logLines = append(p.logLines, line)
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.logLines, "\n")
}

// command runs a command of rls against the debug listener, and returns its output.
func (p *process) command(args ...string) string {
	out, err := exec.Command(p.cmd.Path, append(args, "--admin", p.debug)...).CombinedOutput()
	require.NoError(p.t, err, "%s", out)
	return string(out)
}

// metrics returns the metrics of the process, with their labels in the names.
func (p *process) metrics() map[string]float64 {
	resp, err := http.Get("http://" + p.debug + "/metrics")
	require.NoError(p.t, err)
	defer resp.Body.Close()
	m, err := readMetrics(resp.Body)
	require.NoError(p.t, err)
	return m
}

// readMetrics returns the values of all metrics by name and labels.
func readMetrics(text io.Reader) (map[string]float64, error) {
	values := map[string]float64{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		end := strings.LastIndexByte(lines.Text(), ' ')
		if value, err := strconv.ParseFloat(lines.Text()[end+1:], 64); err == nil && end > 0 { // else a comment
			values[lines.Text()[:end]] = value
		}
	}
	return values, lines.Err()
}

// sumOf returns the sum of the metrics whose name starts with name and whose labels contain label.
func sumOf(metrics map[string]float64, name, label string) (sum float64) {
	for n, value := range metrics {
		if base, labels, _ := strings.Cut(n, "{"); base == name && strings.Contains(labels, label) {
			sum += value
		}
	}
	return sum
}
