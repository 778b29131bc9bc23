// Package xds is the source of limits from an xDS management server. Each response on the aggregated stream (ADS) has all
// resources, as in envoyproxy/ratelimit. So a resource that is missing from a response is no longer in force. The package
// does not compare versions, because a restarted server may use a version again for other resources.
package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/source"
)

// Options configure a Client.
type Options struct {
	// Server is host:port, or another target that grpc accepts.
	Server string

	// NodeID and NodeMetadata identify this service. The server chooses the limits for this identity.
	NodeID       string
	NodeMetadata map[string]string

	// Headers are the gRPC metadata of each stream.
	Headers map[string]string

	// TLS secures the connection; nil means plain text. Each connection reads the files.
	TLS *clienttls.Files

	// MaxMessageBytes bounds a response; 16 MiB by default.
	MaxMessageBytes int

	// Backoff has the pauses between attempts to connect. The pauses start again with Initial after a stream that had
	// valid limits, or that lasted for Max.
	Backoff wait.Backoff

	// Parse are the options for parsing resources.
	Parse limitsfile.Options

	Log *slog.Logger
}

// Client is the source of the limits of an xDS server.
type Client struct {
	Options
	nackBackoff         wait.Backoff  // the pauses before the second and later NACKs in a row; see stream.nackBackoff
	maxSilence          time.Duration // the time after which the log has a warning about a new stream without a response
	apply               func(source.Update) error
	limits              *limitsfile.Set // the limits in force; nil before the first limits
	lastAcceptedVersion string          // the version of the last response without a rejected part; "" before such a response
}

var _ source.Source = (*Client)(nil)

const defaultMessageBytes = 16 << 20

// New returns a Client. It returns an error if the server is missing or a TLS file can't be read.
func New(o Options) (*Client, error) {
	if o.Server == "" {
		return nil, errors.New("xDS: the server is missing")
	}
	if _, err := o.TLS.Credentials(); err != nil {
		return nil, fmt.Errorf("xDS TLS: %w", err)
	}
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, defaultMessageBytes)
	return &Client{
		Options:     o,
		nackBackoff: wait.Backoff{Initial: time.Second, Max: 10 * time.Second},
		maxSilence:  30 * time.Second,
	}, nil
}

// Run implements source.Source.
func (c *Client) Run(ctx context.Context, apply func(source.Update) error) error {
	c.apply = apply
	retry := c.Backoff.Start()
	for {
		start := time.Now()
		s := &stream{client: c, nackBackoff: c.nackBackoff.Start()}
		err := s.run(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.hasAppliedLimits || s.isConnected && time.Since(start) >= c.Backoff.Max {
			retry.Reset()
		}
		pause := retry.NextBackOff()
		c.setOutage(fmt.Errorf("xDS server %s: %w", c.Server, err))
		message := "xDS server unreachable"
		if s.isConnected {
			message = "xDS stream lost"
		}
		c.Log.Warn(message+"; "+c.outageEffect(), "server", c.Server, "error", err, "retry_in", pause.Round(time.Millisecond))
		if !wait.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// setOutage reports the error that keeps responses from arriving. nil reports that responses arrive again.
func (c *Client) setOutage(err error) { _ = c.apply(source.Update{Outage: err}) }

func (c *Client) outageEffect() string {
	if c.limits != nil {
		return "the last good limits stay in force"
	}
	return "no limits loaded yet"
}
