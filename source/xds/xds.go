// Package xds receives limits from an xDS management server: state of the world
// over an aggregated stream (ADS), as envoyproxy/ratelimit does.
//
// Terms:
//
//   - resource: a RateLimitConfig, the limits of one domain;
//   - update: a response of the server. It holds all resources: what isn't in it
//     is no longer in force;
//   - version: the server's name for an update, which means nothing here. A
//     restarted server may use one again for something else;
//   - nonce: names a response on its stream; the answer to it repeats it;
//   - ACK, NACK: the answers that an update is in force, or why it isn't.
package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/seed-81f232ab/rls/internal/wait"
)

// Options say where the limits come from and where they go.
type Options struct {
	// Server is host:port, or another target that grpc understands.
	Server string

	// NodeID and NodeMetadata are what the server chooses the limits by.
	NodeID       string
	NodeMetadata map[string]string

	// Headers are sent with each stream, as gRPC metadata.
	Headers map[string]string

	// TLS secures the connection; nil leaves it in plain text.
	TLS *TLS

	// MaxMessageBytes bounds an update; 0 means 16 MiB.
	MaxMessageBytes int

	// Backoff spaces attempts to connect.
	Backoff Backoff

	// Apply puts an update in force, or says all that is wrong with it and leaves
	// things as they are. The resources are sorted by name.
	Apply func(version string, resources []*confv3.RateLimitConfig) error

	// Refused, if set, is called with what is wrong with an update, unless a stream
	// has brought that just before.
	Refused func(error)

	// State, if set, is told why no updates come: the server can't be reached, or it
	// is silent although it should have said something by now. It is told nil when
	// that is over.
	State func(error)

	Log *slog.Logger
}

// Backoff spaces attempts. It starts anew after a stream that brought an update in
// force, or that lasted for Max.
type Backoff struct {
	// Initial is the pause after the first failure, over 0. Each one doubles the
	// next, up to Max.
	Initial, Max time.Duration

	// Jitter is the share by which a pause can be longer or shorter at random, from
	// 0 to 1.
	Jitter float64
}

// Client holds a stream to a server.
type Client struct {
	Options
	renack   Backoff
	silence  time.Duration // on a new stream, after which something is amiss
	accepted bool          // an update, at least
	version  string        // of the update in force, "" if none
}

const defaultMessageBytes = 16 << 20

// New makes a Client. The error says which option is wrong, or which file of TLS.
func New(o Options) (*Client, error) {
	switch b := o.Backoff; {
	case o.Server == "":
		return nil, errors.New("xDS: no server is given")
	case b.Initial <= 0 || b.Max < b.Initial:
		return nil, errors.New("xDS: the back-off's initial interval must be over 0 and not over the maximum")
	case !(b.Jitter >= 0 && b.Jitter <= 1):
		return nil, errors.New("xDS: the back-off's jitter must be from 0 to 1")
	}
	if _, err := o.TLS.credentials(); err != nil {
		return nil, err
	}
	if o.MaxMessageBytes == 0 {
		o.MaxMessageBytes = defaultMessageBytes
	}
	if o.Refused == nil {
		o.Refused = func(error) {}
	}
	if o.State == nil {
		o.State = func(error) {}
	}
	return &Client{
		Options: o,
		renack:  Backoff{Initial: time.Second, Max: 10 * time.Second},
		silence: 30 * time.Second,
	}, nil
}

// Run receives updates until ctx is done. Whatever the server does, the last good
// limits stay in force. It calls the functions of Options one at a time.
func (c *Client) Run(ctx context.Context) {
	pauses := c.Backoff.start()
	for {
		began := time.Now()
		s := &stream{client: c, renack: c.renack.start()}
		err := s.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.accepted || s.connected && time.Since(began) >= c.Backoff.Max {
			pauses.Reset()
		}
		pause := pauses.NextBackOff()
		c.State(fmt.Errorf("xDS server %s: %w", c.Server, err))
		message := "xDS server can't be reached"
		if s.connected {
			message = "xDS stream lost"
		}
		c.Log.Warn(message+"; "+c.inForce(), "server", c.Server, "error", err, "retry_in", pause.Round(time.Millisecond))
		if !wait.For(ctx, pause) {
			return
		}
	}
}

// inForce says what happens without updates.
func (c *Client) inForce() string {
	if c.accepted {
		return "the last good limits stay in force"
	}
	return "there are no limits yet"
}

// start makes the pauses of b, from the first.
func (b Backoff) start() *backoff.ExponentialBackOff {
	e := &backoff.ExponentialBackOff{
		InitialInterval:     b.Initial,
		MaxInterval:         b.Max,
		RandomizationFactor: b.Jitter,
		Multiplier:          2,
	}
	e.Reset()
	return e
}
