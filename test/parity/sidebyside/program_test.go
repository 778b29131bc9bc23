//go:build parity

package sidebyside

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/proctest"
)

const root = "../../.."

// maxWait is the longest time that a test waits for a program on a busy machine.
const maxWait = 30 * time.Second

// program is rls or the incumbent, with metrics for Prometheus.
type program struct {
	client      rlsv3.RateLimitServiceClient
	grpcAddr    string
	httpAddr    string
	metricsAddr string
}

// limitsFiles are the texts of limits files, by name.
type limitsFiles map[string]string

// startRLS runs RLS_TEST_RLS with limits.
func startRLS(t *testing.T, limits limitsFiles, env ...string) *program {
	t.Helper()
	bin := os.Getenv("RLS_TEST_RLS")
	require.NotEmpty(t, bin, "run make parity")
	return start(t, bin, limits, append(env, "CACHE_KEY_PREFIX=rls", "REDIS_TIMEOUT=20s")...)
}

// startIncumbent runs envoyproxy/ratelimit with limits.
func startIncumbent(t *testing.T, limits limitsFiles, env ...string) *program {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join(root, ".tools/service_cmd"))
	require.NoError(t, err)
	_, err = os.Stat(bin)
	require.NoError(t, err, "make parity installs envoyproxy/ratelimit")
	env = append([]string{"USE_STATSD=false", "STATS_FLUSH_INTERVAL=1s", "CACHE_KEY_PREFIX=incumbent"}, env...)
	return start(t, bin, limits, append(env, "LOG_LEVEL=error")...)
}

// start runs a program and returns when it answers. If env has two settings with
// the same name, the last applies.
func start(t *testing.T, bin string, limits limitsFiles, env ...string) *program {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "config"), 0o755))
	for name, text := range limits {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config", name+".yaml"), []byte(text), 0o600))
	}
	grpcPort, httpPort, metricsPort := freePort(t), freePort(t), freePort(t)
	cmd := exec.CommandContext(t.Context(), bin)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Env = append([]string{"USE_PROMETHEUS=true"}, env...)
	cmd.Env = append(cmd.Env, "HOME="+dir, "RUNTIME_ROOT="+dir, "RUNTIME_APPDIRECTORY=config", "RUNTIME_WATCH_ROOT=false",
		"PROMETHEUS_ADDR=127.0.0.1:"+metricsPort, "GRPC_HOST=127.0.0.1", "GRPC_PORT="+grpcPort,
		"HOST=127.0.0.1", "PORT="+httpPort, "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+freePort(t))
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("output of %s:\n%s", bin, output.String())
		}
	})
	conn, err := grpc.NewClient("127.0.0.1:"+grpcPort, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	p := &program{rlsv3.NewRateLimitServiceClient(conn), "127.0.0.1:" + grpcPort, "127.0.0.1:" + httpPort, "127.0.0.1:" + metricsPort}
	polltest.Until(t, maxWait, func() bool {
		resp, err := http.Get("http://127.0.0.1:" + httpPort + "/healthcheck")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	})
	polltest.Until(t, maxWait, func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+grpcPort)
		return err == nil && conn.Close() == nil
	})
	return p
}

// call sends req over gRPC.
func (p *program) call(t *testing.T, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	return p.client.ShouldRateLimit(t.Context(), req, grpc.WaitForReady(true))
}

// post sends req to /json.
func (p *program) post(t *testing.T, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	t.Helper()
	body, err := protojson.Marshal(req)
	require.NoError(t, err)
	resp, err := http.Post("http://"+p.httpAddr+"/json", "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
		return nil, fmt.Errorf("%s: %s", resp.Status, body)
	}
	response := &rlsv3.RateLimitResponse{}
	require.NoError(t, protojson.Unmarshal(body, response), "%s", body)
	require.Equal(t, resp.StatusCode == http.StatusOK, response.GetOverallCode() == rlsv3.RateLimitResponse_OK)
	return response, nil
}

// get returns a page of the metrics listener.
func (p *program) get(t *testing.T, path string) string {
	t.Helper()
	resp, err := http.Get(fmt.Sprint("http://", p.metricsAddr, path))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	return string(body)
}

// freePort returns a port that no server uses now.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := proctest.FreePort()
	require.NoError(t, err)
	return strconv.Itoa(port)
}
