// Package client asks an rls service for permits, so that any Go program has the same limits as
// the requests through Envoy. Its methods are like the methods of golang.org/x/time/rate:
//
//   - Allow reports whether an event may happen now;
//   - Acquire waits until an event may happen;
//   - Reserve takes a permit that Cancel can give back;
//   - AcquireHold takes a slot of a concurrency limit until Release.
//
// Each method has a variant with N, which takes n permits at once. The client gets all n permits, or no permit.
//
// A domain and descriptors name a limit, as in the limits file of the service:
//
//	c, err := client.New("rls:8081", client.Options{})
//	…
//	err = c.Acquire(ctx, "shop", client.NewDescriptor("tenant", "acme").Add("path", "/orders"))
//
// A call can have several descriptors. It gets its permits if all descriptors have enough permits.
// If no rule of the service matches a descriptor, the descriptor has no limit, as with Envoy.
// Decision.Limited then tells a caller of Check that no limit counts the request.
//
// Allow and Check charge denied hits as the rule states. A denied Acquire, Reserve or AcquireHold
// charges nothing, as long as the service is rls.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// DefaultTimeout is the default of Options.Timeout.
const DefaultTimeout = time.Second

// ErrClosed is returned by calls of a closed Client.
var ErrClosed = errors.New("rls client is closed")

// Options configure a Client. The zero value connects in plain text and fails closed.
type Options struct {
	// TLS is the configuration for TLS. If it is nil, the connection is plain text.
	TLS *tls.Config

	// Timeout bounds the time of one call of the service with its retries. The default is DefaultTimeout. If the
	// service can't be reached, or the connection breaks before the answer, the client repeats the call up to four
	// times within Timeout. If the connection breaks, the service may charge the permits twice.
	Timeout time.Duration

	// Failure says how the client decides while the service does not answer.
	Failure Failure

	// Limits are the limits for FailLocal. Usually, they come from the limits file of the service.
	// See package client/local.
	Limits Limits

	// LocalRatio is the share of each of the Limits that this process may use, above 0 and at
	// most 1. Four processes that share a limit need a ratio of 0.25. The default is 1.
	LocalRatio float64

	// DialOptions are further options of the connection, for example for tracing.
	DialOptions []grpc.DialOption

	// Log gets the events that no method returns, such as an outage. The default is no log.
	Log *slog.Logger

	// Clock is the clock for decisions in this process and for waits. The default is the clock of the system.
	Clock Clock
}

// Client asks one service for permits, over one connection. It is safe for concurrent use.
type Client struct {
	decider decider
	timeout time.Duration
	clock   Clock
	log     *slog.Logger
	conn    io.Closer // nil after NewLocal

	lifetime    context.Context // ends with Close
	endLifetime context.CancelFunc

	mu         sync.Mutex
	queues     map[string]*queue // the queues of waiting callers; the key is queue.key
	goroutines sync.WaitGroup    // the goroutines of queues and of holds
	isClosed   bool
}

// decider decides calls. The decider of a Client is a failover, or after NewLocal a service in this process.
type decider interface {
	decide(ctx context.Context, c *call) (*answer, error)
}

// New returns a Client of the service at target, such as "rls.internal:8081". The first call opens the connection.
// Targets have the syntax of gRPC, so "dns:///rls:8081" and "unix:///run/rls.sock" are valid too.
func New(target string, o Options) (*Client, error) {
	if target == "" {
		return nil, errors.New("target: got none, want host:port")
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("options: Timeout: got %s, want at least 0", o.Timeout)
	}
	client := newClient(o)
	remoteService, conn, err := dial(target, o)
	if err != nil {
		return nil, err
	}
	client.conn = conn
	client.decider, err = newFailover(remoteService, o, client.clock, client.log)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return client, nil
}

// NewLocal returns a Client without a service, which decides in this process with limits. It uses only the options
// LocalRatio, Log and Clock.
func NewLocal(limits Limits, o Options) (*Client, error) {
	c := newClient(o)
	l, err := newLocal(limits, o.LocalRatio, c.clock)
	if err != nil {
		return nil, err
	}
	c.decider = l
	return c, nil
}

func newClient(options Options) *Client {
	client := &Client{
		timeout: cmp.Or(options.Timeout, DefaultTimeout), clock: cmp.Or[Clock](options.Clock, systemClock{}),
		log: cmp.Or(options.Log, slog.New(slog.DiscardHandler)), queues: map[string]*queue{},
	}
	client.lifetime, client.endLifetime = context.WithCancel(context.Background())
	return client
}

// Close ends the waits of callers with ErrClosed, and closes the connection. Close does not give
// back holds or the permits of calls in flight. Close waits for the goroutines of the Client.
func (c *Client) Close() error {
	c.mu.Lock()
	conn := c.conn
	c.isClosed, c.conn = true, nil
	c.mu.Unlock()
	c.endLifetime()
	c.goroutines.Wait()
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// Check sends r and returns the decision with its details. It charges denied hits as the rule
// states. The other methods are usually simpler.
func (c *Client) Check(ctx context.Context, r Request) (Decision, error) {
	a, err := c.send(ctx, call{request: &r})
	if err != nil {
		return Decision{}, err
	}
	return a.decision(), nil
}

// Peek returns the state of the limits of ds. It charges nothing.
func (c *Client) Peek(ctx context.Context, domain string, ds ...Descriptor) (Decision, error) {
	a, err := c.decide(ctx, call{request: &Request{Domain: domain, Descriptors: ds}})
	if err != nil {
		return Decision{}, err
	}
	return a.decision(), nil
}

func (c *Client) send(ctx context.Context, newCall call) (*answer, error) {
	newCall.n = newCall.request.n()
	return c.decide(ctx, newCall)
}

func (c *Client) decide(ctx context.Context, newCall call) (*answer, error) {
	if err := newCall.request.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.lifetime.Err() != nil {
		return nil, ErrClosed
	}
	callCtx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	calledAt := c.clock.Now()
	a, err := c.decider.decide(callCtx, &newCall)
	switch {
	case err == nil:
		a.calledAt = calledAt
	case ctx.Err() != nil:
		err = ctx.Err()
	}
	return a, err
}

// Allow reports whether one event may happen now.
func (c *Client) Allow(ctx context.Context, domain string, ds ...Descriptor) (bool, error) {
	return c.AllowN(ctx, 1, domain, ds...)
}

// AllowN reports whether n events may happen now.
func (c *Client) AllowN(ctx context.Context, n int, domain string, ds ...Descriptor) (bool, error) {
	a, err := c.send(ctx, call{request: &Request{Domain: domain, Descriptors: ds, N: zeroToNoPermits(n)}})
	return err == nil && a.Allowed, err
}

// Clock is the clock of a Client. Package clienttest has a Clock that tests advance.
type Clock interface {
	// Now returns the time of decisions in this process.
	Now() time.Time

	// NewTimer returns a channel that gets the time when d has passed, and a function that stops the timer.
	NewTimer(d time.Duration) (<-chan time.Time, func())
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) NewTimer(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}
