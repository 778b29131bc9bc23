//go:build parity

package parity

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/proctest"
)

// The tests of the incumbent expect servers at these ports, as its Makefile starts them.
const password = "password123"

// maxWait is the longest time that a server may take to start on a busy machine.
const maxWait = 30 * time.Second

// startServers starts the servers that the tests of the incumbent expect beside those that they start.
func startServers(t *testing.T, source string) {
	t.Helper()
	for _, port := range []int{6381, 6382, 6361, 6392, 6397} {
		startRedis(t, port)
	}
	startRedis(t, 6393, "--replicaof", "127.0.0.1", "6392", "--masterauth", password)
	startRedis(t, 6398, "--replicaof", "127.0.0.1", "6397", "--masterauth", password)
	for config, ports := range map[string][]int{
		"sentinel.conf":            {26394, 26395, 26396},
		"sentinel-pre-second.conf": {26399, 26400, 26401},
	} {
		for _, port := range ports {
			startSentinel(t, port, filepath.Join(source, "test/integration/conf", config))
		}
	}
	for _, firstPort := range []int{6386, 6389} {
		startCluster(t, firstPort)
	}
	authority := certtest.New(t)
	certificate := writeCertificate(t, authority, source)
	forwardTLS(t, 16381, 6381, certificate, nil)
	forwardTLS(t, 16382, 6382, certificate, nil)
	forwardTLS(t, 16361, 6361, certificate, authority.Pool())
}

// startRedis starts a Redis in a folder of its own, and returns when it answers.
func startRedis(t *testing.T, port int, args ...string) {
	t.Helper()
	startProgram(t, port, append([]string{
		"redis-server", "--port", strconv.Itoa(port), "--bind", "127.0.0.1 ::1",
		"--requirepass", password, "--save", "", "--repl-diskless-sync-delay", "0",
	}, args...)...)
}

func startSentinel(t *testing.T, port int, config string) {
	t.Helper()
	configCopy := filepath.Join(t.TempDir(), "sentinel.conf") // a Sentinel writes to its file
	require.NoError(t, os.WriteFile(configCopy, readFile(t, config), 0o600))
	startProgram(t, port, "redis-server", configCopy, "--sentinel", "--port", strconv.Itoa(port))
}

// startCluster starts three nodes from the port first on, and returns when each knows all hash slots.
func startCluster(t *testing.T, firstPort int) {
	t.Helper()
	create := []string{"--cluster", "create", "--cluster-replicas", "0", "--cluster-yes"}
	for port := firstPort; port < firstPort+3; port++ {
		startRedis(t, port, "--cluster-enabled", "yes")
		create = append(create, fmt.Sprint("127.0.0.1:", port))
	}
	redisCLI(t, firstPort, create...)
	for port := firstPort; port < firstPort+3; port++ {
		polltest.Until(t, maxWait, func() bool {
			info := redisCLI(t, port, "cluster", "info")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
}

func redisCLI(t *testing.T, port int, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "redis-cli", append([]string{"-p", strconv.Itoa(port), "-a", password, "--no-auth-warning"}, args...)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", cmd, out)
	return string(out)
}

// startProgram starts a program that ends with the test, and returns when it listens on port.
func startProgram(t *testing.T, port int, command ...string) {
	t.Helper()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if conn, err := net.Dial("tcp", addr); err == nil {
		_ = conn.Close()
		require.FailNow(t, "port in use", "The tests of the incumbent need port %d. End the program that listens there.", port)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = t.TempDir()
	require.NoError(t, proctest.Start(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	polltest.Until(t, maxWait, func() bool {
		conn, err := net.Dial("tcp", addr)
		return err == nil && conn.Close() == nil
	})
}

// writeCertificate writes the files that the tests of the incumbent read: cert.pem and key.pem of localhost. The
// tests also read cert.pem as the file of authorities.
func writeCertificate(t *testing.T, authority *certtest.Authority, dir string) tls.Certificate {
	t.Helper()
	pair := authority.Issue("localhost")
	certPEM := append(readFile(t, pair.CertFile), readFile(t, authority.File)...)
	keyPEM := readFile(t, pair.KeyFile)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cert.pem"), certPEM, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "key.pem"), keyPEM, 0o600))
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	return certificate
}

// forwardTLS ends TLS at the port from, and forwards connections to the port to. With clients, it admits only
// clients whose certificate they have signed.
func forwardTLS(t *testing.T, from, to int, certificate tls.Certificate, clients *x509.CertPool) {
	t.Helper()
	conf := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if clients != nil {
		conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, clients
	}
	listener, err := tls.Listen("tcp", fmt.Sprint("127.0.0.1:", from), conf)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go forward(conn, fmt.Sprint("127.0.0.1:", to))
		}
	}()
}

func forward(conn net.Conn, addr string) {
	defer conn.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, conn)
		_ = server.Close()
	}()
	_, _ = io.Copy(conn, server)
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	return content
}
