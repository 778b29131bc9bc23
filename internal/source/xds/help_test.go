package xds

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/testkit/xdstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a management server that serves each stream with the function.
type script func(discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error

type scriptServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	script
}

func (s scriptServer) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.script(stream)
}

// serveScript serves s until the test ends.
func serveScript(t *testing.T, s script) (addr string) {
	addr, _ = xdstest.Listen(t, "127.0.0.1:0", scriptServer{script: s})
	return addr
}

// subject is a running Client and what it has applied.
type subject struct {
	t        *testing.T
	store    descriptors.Store
	updates  chan *descriptors.Config
	rejected chan error
	outages  chan string // Update.Outage of each update, as text
	log      *logLines
	stop     func()
}

// run runs a Client of server until the test ends. It completes o.
func run(t *testing.T, server string, o Options) *subject {
	t.Helper()
	s := &subject{
		t:        t,
		updates:  make(chan *descriptors.Config, 100),
		rejected: make(chan error, 100),
		outages:  make(chan string, 10_000),
		log:      &logLines{},
	}
	o.Server, o.NodeID = server, xdstest.Node
	if o.Backoff == (wait.Backoff{}) {
		o.Backoff = wait.Backoff{Initial: time.Millisecond, Max: 20 * time.Millisecond, Jitter: 0.5}
	}
	o.Log = slog.New(slog.NewTextHandler(s.log, nil))
	c, err := New(o)
	require.NoError(t, err)
	c.nackBackoff = wait.Backoff{Initial: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	c.maxSilence = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert.ErrorIs(t, c.Run(ctx, s.apply), context.Canceled)
	}()
	s.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(s.stop)
	return s
}

func (s *subject) apply(u source.Update) error {
	s.outages <- fmt.Sprint(u.Outage)
	if u.Problem != nil {
		s.rejected <- u.Problem
	}
	if u.Limits != nil {
		cfg := descriptors.Compile(u.Limits)
		s.store.Set(cfg)
		s.updates <- cfg
	}
	return u.Problem
}

// update returns the names of the domains in the next update.
func (s *subject) update() string {
	s.t.Helper()
	select {
	case cfg := <-s.updates:
		return domains(cfg)
	case <-time.After(xdstest.Patience):
		require.FailNow(s.t, "no update comes", s.log.String())
		return ""
	}
}

// rejection returns why the next update is rejected.
func (s *subject) rejection() string {
	s.t.Helper()
	select {
	case err := <-s.rejected:
		return err.Error()
	case <-time.After(xdstest.Patience):
		require.FailNow(s.t, "no update is rejected", s.log.String())
		return ""
	}
}

// awaitOutage waits for an update whose Outage contains text.
func (s *subject) awaitOutage(text string) {
	s.t.Helper()
	for late := time.After(xdstest.Patience); ; {
		select {
		case state := <-s.outages:
			if strings.Contains(state, text) {
				return
			}
		case <-late:
			require.FailNow(s.t, "no such update", "%s\n%s", text, s.log)
		}
	}
}

// inForce returns the names of the domains in force.
func (s *subject) inForce() string { return domains(s.store.Load()) }

func domains(cfg *descriptors.Config) string {
	var names []string
	for _, d := range cfg.Domains() {
		names = append(names, d.Name)
	}
	return strings.Join(names, " ")
}

// logLines is a log that can be read while it is written.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(b))
	return len(b), nil
}

// containing returns the lines that contain text.
func (l *logLines) containing(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool { return !strings.Contains(line, text) })
}

func (l *logLines) String() string { return strings.Join(l.containing(""), "") }

// await waits for n log lines that contain text and returns them.
func (s *subject) await(n int, text string) []string {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return len(s.log.containing(text)) >= n }, xdstest.Patience, time.Millisecond,
		"%d lines with %q", n, text)
	return s.log.containing(text)[:n]
}

// perDay returns the limit in force for domain.
func (s *subject) perDay(domain string) uint32 {
	s.t.Helper()
	d := s.store.Load().Domain(domain)
	require.NotNil(s.t, d, "domain %s", domain)
	var b strings.Builder
	require.NoError(s.t, s.store.Load().WriteLines(&b))
	var n uint32
	_, line, _ := strings.Cut("\n"+b.String(), "\n"+domain+".")
	_, err := fmt.Sscanf(line, "tenant: unit=DAY requests_per_unit=%d", &n)
	require.NoError(s.t, err, b.String())
	return n
}
