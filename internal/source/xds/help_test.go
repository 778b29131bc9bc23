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

// streamHandler is the part of a management server that serves one stream.
type streamHandler func(discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error

type handlerServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	streamHandler
}

func (s handlerServer) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.streamHandler(stream)
}

// serveStreams serves a management server whose streams go to handler, until the test ends.
func serveStreams(t *testing.T, handler streamHandler) (addr string) {
	addr, _ = xdstest.Listen(t, "127.0.0.1:0", handlerServer{streamHandler: handler})
	return addr
}

// testClient is a running Client with the results of its updates.
type testClient struct {
	t        *testing.T
	store    descriptors.Store
	updates  chan *descriptors.Config
	problems chan error
	outages  chan string // gets Update.Outage of each update, as text
	log      *logLines
	stop     func()
}

// runClient runs a Client of server until the test ends. It sets the missing options of o.
func runClient(t *testing.T, server string, options Options) *testClient {
	t.Helper()
	s := &testClient{
		t:        t,
		updates:  make(chan *descriptors.Config, 100),
		problems: make(chan error, 100),
		outages:  make(chan string, 10_000),
		log:      &logLines{},
	}
	options.Server, options.NodeID = server, xdstest.Node
	if options.Backoff == (wait.Backoff{}) {
		options.Backoff = wait.Backoff{Initial: time.Millisecond, Max: 20 * time.Millisecond, Jitter: 0.5}
	}
	options.Log = slog.New(slog.NewTextHandler(s.log, nil))
	c, err := New(options)
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

func (s *testClient) apply(u source.Update) error {
	s.outages <- fmt.Sprint(u.Outage)
	if u.Problem != nil {
		s.problems <- u.Problem
	}
	if u.Limits != nil {
		cfg := descriptors.Compile(u.Limits)
		s.store.Set(cfg)
		s.updates <- cfg
	}
	return u.Problem
}

// nextUpdate returns the names of the domains in the next update.
func (s *testClient) nextUpdate() string {
	s.t.Helper()
	select {
	case cfg := <-s.updates:
		return domainNames(cfg)
	case <-time.After(xdstest.Patience):
		require.FailNow(s.t, "no update comes", s.log.String())
		return ""
	}
}

// nextProblem returns the problem of the next update that is rejected.
func (s *testClient) nextProblem() string {
	s.t.Helper()
	select {
	case err := <-s.problems:
		return err.Error()
	case <-time.After(xdstest.Patience):
		require.FailNow(s.t, "no update is rejected", s.log.String())
		return ""
	}
}

// awaitOutage waits for an update with an Outage that contains text.
func (s *testClient) awaitOutage(text string) {
	s.t.Helper()
	for timeout := time.After(xdstest.Patience); ; {
		select {
		case state := <-s.outages:
			if strings.Contains(state, text) {
				return
			}
		case <-timeout:
			require.FailNow(s.t, "no update with this outage comes", "%s\n%s", text, s.log)
		}
	}
}

// domainsInForce returns the names of the domains in force.
func (s *testClient) domainsInForce() string { return domainNames(s.store.Load()) }

func domainNames(cfg *descriptors.Config) string {
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

// linesWith returns the lines that contain text.
func (l *logLines) linesWith(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool { return !strings.Contains(line, text) })
}

func (l *logLines) String() string { return strings.Join(l.linesWith(""), "") }

// awaitLines waits for n log lines that contain text, and returns the lines.
func (s *testClient) awaitLines(n int, text string) []string {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return len(s.log.linesWith(text)) >= n }, xdstest.Patience, time.Millisecond,
		"%d lines with %q", n, text)
	return s.log.linesWith(text)[:n]
}

// requestsPerDay returns the limit in force for domain.
func (s *testClient) requestsPerDay(domain string) uint32 {
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
