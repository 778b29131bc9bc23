//go:build parity

package parity

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/test/envoyconf"
	"github.com/seed-81f232ab/rls/test/parity/modcache"
)

// hosts are the names of the services in the incumbent's compose file. Here all of them listen on the loopback.
var hosts = strings.NewReplacer(
	"address: ratelimit", "address: 127.0.0.1",
	"address: envoy-mock", "address: 127.0.0.1",
	"envoy-proxy:", "127.0.0.1:",
	"statsd:", "127.0.0.1:",
)

// TestIncumbentsComposeScriptsPass runs the scripts of the incumbent's compose file behind a real Envoy.
func TestIncumbentsComposeScriptsPass(t *testing.T) {
	source := copyIncumbent(t)
	const redisPort = 6378
	startProgram(t, redisPort, "redis-server", "--port", fmt.Sprint(redisPort), "--bind", "127.0.0.1", "--save", "")
	tools, err := filepath.Abs("../../.tools")
	require.NoError(t, err)
	startProgram(t, 9102, filepath.Join(tools, "statsd_exporter"), "--statsd.listen-tcp=127.0.0.1:9125", "--statsd.listen-udp=127.0.0.1:9125",
		"--web.listen-address=127.0.0.1:9102", "--statsd.mapping-config="+filepath.Join(source, "examples/prom-statsd-exporter/conf.yaml"))
	// The command and the settings of the service ratelimit in the compose file.
	startProgram(t, 8081, "env", "REDIS_SOCKET_TYPE=tcp", fmt.Sprint("REDIS_URL=127.0.0.1:", redisPort), "RUNTIME_ROOT="+filepath.Join(source, "examples"),
		"RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "USE_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT=9125",
		"STATS_FLUSH_INTERVAL=1s", "LOG_LEVEL=debug", os.Getenv("RLS_TEST_RLS"), "/bin/ratelimit")
	envoy, err := envoyconf.Program(os.Getenv("ENVOY_BIN"), "../..")
	require.NoError(t, err)
	for i, service := range []struct {
		name string
		port int
	}{{"mock", 9999}, {"proxy", 8888}} {
		config := filepath.Join(source, "examples/envoy", service.name+".yaml")
		text := hosts.Replace(string(readFile(t, config)))
		text = strings.ReplaceAll(text, "port_value: 8001", fmt.Sprint("port_value: ", 8001+i)) // the port of each container
		const filter = "                      failure_mode_deny: false\n"
		text = strings.Replace(text, filter, filter+strings.Replace(filter, "failure_mode_deny: false", "timeout: 5s", 1), 1) // for a busy machine
		require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
		startProgram(t, service.port, envoy, "--service-node", service.name, "--service-cluster", service.name,
			"--config-path", config, "--concurrency", "1", "--log-level", "error", "--base-id", fmt.Sprint(100+i))
	}
	scripts, err := filepath.Glob(filepath.Join(source, "integration-test/scripts/*.sh"))
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	passedCount := 0
	for _, script := range scripts {
		// The limits have windows of a minute, and a script takes a few seconds.
		if timeLeft := time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)); timeLeft < 20*time.Second {
			time.Sleep(timeLeft)
		}
		out, err := exec.CommandContext(t.Context(), "bash", "-c", hosts.Replace(string(readFile(t, script)))).CombinedOutput()
		if assert.NoError(t, err, "%s: %s", filepath.Base(script), out) {
			passedCount++
		}
	}
	fmt.Printf("compose scripts of %s: %d of %d pass\n", modcache.IncumbentPath, passedCount, len(scripts))
}
