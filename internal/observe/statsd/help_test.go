package statsd

import (
	"bytes"
	"io"
	"iter"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listener is a statsd server that keeps the packets.
type listener struct {
	Server
	packets chan string
}

// listenUDP starts a statsd server on UDP. Each packet arrives as a string.
func listenUDP(t *testing.T) *listener {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &listener{Server{Network: "udp", Host: "127.0.0.1", Port: conn.LocalAddr().(*net.UDPAddr).Port}, make(chan string, 1000)}
	serve(t, conn, func() {
		packet := make([]byte, 1<<16)
		for {
			n, _, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			l.packets <- string(packet[:n])
		}
	})
	return l
}

// listenTCP starts a statsd server on TCP. All lines of a connection arrive as one string.
func listenTCP(t *testing.T) *listener {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &listener{Server{Network: "tcp", Host: "127.0.0.1", Port: server.Addr().(*net.TCPAddr).Port}, make(chan string, 1000)}
	serve(t, server, func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			lines, _ := io.ReadAll(conn)
			_ = conn.Close()
			l.packets <- string(lines)
		}
	})
	return l
}

// serve runs accept until the end of the test, which closes c.
func serve(t *testing.T, c io.Closer, accept func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		accept()
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
}

// lines returns the sorted lines of the next packet.
func (l *listener) lines(t *testing.T) []string {
	t.Helper()
	select {
	case packet := <-l.packets:
		require.True(t, strings.HasSuffix(packet, "\n"), "the last line has an end")
		lines := strings.Split(strings.TrimSuffix(packet, "\n"), "\n")
		slices.Sort(lines)
		return lines
	case <-time.After(20 * time.Second):
		require.Fail(t, "no packet has arrived")
		return nil
	}
}

// process has the metrics that an Exporter or a page reads.
type process struct {
	registry  *prometheus.Registry
	rules     []metrics.KeyCounts
	ruleReads int // how often the rules were read
	logText   bytes.Buffer
	level     slog.LevelVar
}

func newProcess() *process { return &process{registry: prometheus.NewRegistry()} }

// exporter returns an Exporter that flushes only when the test calls flush.
func (p *process) exporter(server *Server, tags map[string]string) *Exporter {
	return newExporter(p.options(server, tags))
}

func (p *process) options(server *Server, tags map[string]string) Options {
	return Options{
		Gatherer: p.registry, Rules: p.allRules, Server: server, ExtraTags: tags,
		Interval: 10 * time.Second, Log: slog.New(slog.NewTextHandler(&p.logText, &slog.HandlerOptions{Level: &p.level})),
	}
}

func (p *process) allRules() iter.Seq[metrics.KeyCounts] {
	p.ruleReads++
	return slices.Values(p.rules)
}

func (p *process) counter(name string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name})
	p.registry.MustRegister(c)
	return c
}

func (p *process) counterVec(name, label string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name}, []string{label})
	p.registry.MustRegister(c)
	return c
}
