// Package load sends calls to any rate-limit service of Envoy, by its address, and says how long
// the answers take.
package load

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// connections is the number of connections of a client. Envoy has one for each of its threads.
const connections = 2

// windowBytes is the size of the windows of HTTP/2. A client of grpc-go without fixed windows pings
// the server after most answers. Envoy does not.
const windowBytes = 1 << 20

// maxOpen bounds the calls of an open loop that have no answer yet. Further calls wait, and
// their latency still counts from the time at which they were due.
const maxOpen = 4096

// stride is the distance between the keys of two calls that follow each other. It is prime, so
// the calls reach all keys.
const stride = 7919

// callerStride is the distance between the first keys of two callers.
const callerStride = 1_299_709

// Client is a client of a rate-limit service.
type Client struct {
	conns [connections]*grpc.ClientConn
	stubs [connections]rlsv3.RateLimitServiceClient
}

// retries lets Ready see a server as soon as it listens. The default pauses are a second and more.
var retries = grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: readyPause, Multiplier: 1, MaxDelay: readyPause}, MinConnectTimeout: time.Second}

// readyPause is the pause between two attempts to reach a server.
const readyPause = 20 * time.Millisecond

// Dial returns a client of the server at addr. It does not wait for the connection.
func Dial(addr string) (*Client, error) {
	c := new(Client)
	for i := range c.conns {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(retries),
			grpc.WithStaticStreamWindowSize(windowBytes), grpc.WithStaticConnWindowSize(windowBytes))
		if err != nil {
			return nil, err
		}
		c.conns[i], c.stubs[i] = conn, rlsv3.NewRateLimitServiceClient(conn)
	}
	return c, nil
}

// Close closes the connections.
func (c *Client) Close() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

func (c *Client) call(connection int, r *rlsv3.RateLimitRequest) (admitted bool, err error) {
	response, err := c.stubs[connection%connections].ShouldRateLimit(context.Background(), r)
	return response.GetOverallCode() == rlsv3.RateLimitResponse_OK, err
}

// Send sends the load for a time. It returns how long each call took. In an open loop the time
// of a call begins when the call was due.
func (c *Client) Send(l curves.Load, d time.Duration) ([]time.Duration, error) {
	if l.Rate > 0 {
		return c.sendOpen(l, d)
	}
	return c.sendClosed(l, d)
}

func (c *Client) sendOpen(l curves.Load, d time.Duration) (took []time.Duration, err error) {
	var callers errgroup.Group
	callers.SetLimit(maxOpen)
	var mu sync.Mutex
	requests := sync.Pool{New: func() any { return newRequest(l) }}
	start := time.Now()
	for i := range int(d.Seconds() * float64(l.Rate)) {
		due := start.Add(time.Duration(i) * time.Second / time.Duration(l.Rate))
		sleepUntil(due)
		callers.Go(func() error {
			r := requests.Get().(*request)
			r.setKey(i * stride)
			_, err := c.call(i, r.message)
			latency := time.Since(due)
			requests.Put(r)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, latency)
			return err
		})
	}
	err = callers.Wait()
	return took, err
}

func (c *Client) sendClosed(l curves.Load, d time.Duration) (took []time.Duration, err error) {
	var callers errgroup.Group
	var mu sync.Mutex
	until := time.Now().Add(d)
	for caller := range l.InFlight {
		callers.Go(func() error {
			r := newRequest(l)
			var own []time.Duration
			for i := caller * callerStride; ; i += stride {
				start := time.Now()
				if start.After(until) {
					break
				}
				r.setKey(i)
				if _, err := c.call(caller, r.message); err != nil {
					return err
				}
				own = append(own, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
			return nil
		})
	}
	err = callers.Wait()
	return took, err
}

// fillDescriptors is about the number of descriptors in a call of Fill. Few large calls are
// faster than many small calls.
const fillDescriptors = 100

// Fill hits each key of the load once.
func (c *Client) Fill(l curves.Load) error {
	together := max(fillDescriptors/l.Descriptors, 1)
	var callers errgroup.Group
	var next atomic.Int64
	for caller := range 8 {
		callers.Go(func() error {
			r := newRequest(l)
			for {
				last := int(next.Add(int64(together)))
				m := &rlsv3.RateLimitRequest{Domain: r.message.Domain}
				for key := last - together; key < min(last, r.keys); key++ {
					r = newRequest(l)
					r.setKey(key)
					m.Descriptors = append(m.Descriptors, r.message.Descriptors...)
				}
				if len(m.Descriptors) == 0 {
					return nil
				}
				if _, err := c.call(caller, m); err != nil {
					return err
				}
			}
		})
	}
	return callers.Wait()
}

// request is a request whose key can change.
type request struct {
	message *rlsv3.RateLimitRequest
	keys    int // number of different requests
}

// newRequest returns a request of the load. A request of ten or more descriptors shares its
// keys with no other.
func newRequest(l curves.Load) *request {
	domain := l.Domain
	if domain == "" {
		domain = "bench"
	}
	r := &request{message: &rlsv3.RateLimitRequest{Domain: domain}, keys: l.Keys}
	if l.Descriptors >= 10 {
		r.keys = max(l.Keys/l.Descriptors, 1)
	}
	for range l.Descriptors {
		r.message.Descriptors = append(r.message.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "service", Value: "checkout"}, {Key: "ip"}},
		})
	}
	return r
}

// setKey changes the keys of all descriptors to number i, modulo the number of keys.
func (r *request) setKey(i int) {
	i %= r.keys
	for n, d := range r.message.Descriptors {
		value := strconv.AppendInt([]byte("10."), int64(n), 10)
		value = strconv.AppendInt(append(value, '.'), int64(i>>8), 10)
		value = strconv.AppendInt(append(value, '.'), int64(i&255), 10)
		d.Entries[1].Value = string(value)
	}
}

// Ready waits until the server answers a call, or until ctx ends.
func (c *Client) Ready(ctx context.Context) error {
	probe := &rlsv3.RateLimitRequest{Domain: "none", Descriptors: []*ratelimitv3.RateLimitDescriptor{{}}}
	for {
		_, err := c.stubs[0].ShouldRateLimit(ctx, probe)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w", err)
		case <-time.After(readyPause):
		}
	}
}
