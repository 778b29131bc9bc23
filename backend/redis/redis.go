// Package redis is a backend.Limiter that counts in Redis, so that all replicas
// share one budget: by script (package lua), on the clock of Redis, many hits in
// one trip.
//
// Terms:
//
//   - partition: the keys that one script may touch. A single Redis has one; in
//     Cluster keys are spread over partitions by hash tags (partition.go);
//   - lane: the queue of one partition and its workers (lane.go). Requests that
//     arrive while a lane's workers are away wait, and share the next trip;
//   - trip: one call of the script, with the hits of many requests (trip.go);
//   - call: what one request asks of one lane (request.go).
//
// Nothing is sent twice unless Redis has said that it did not execute it: what
// becomes of a trip whose connection broke is unknown, and its hits fail.
package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Options of a Limiter. Zero values stand for the defaults.
type Options struct {
	// Main is the Redis that counts.
	Main Server

	// PerSecond counts the limits per second (of one second exactly), if given.
	// It is asked at the same time as Main.
	PerSecond *Server

	// KeyPrefix starts every key; at most 64 bytes. In Cluster it can't hold
	// braces, as those would be the hash tag.
	KeyPrefix string

	// Partitions is over how many hash tags the keys of a Cluster are spread; 16
	// by default, at most 1024. All replicas must have the same number: another
	// number makes other keys. It should be a few times the number of masters:
	// more spread the load more evenly, but make each trip carry less.
	Partitions int

	// Jitter is the most by which keys outlive their use, at random, so that
	// they don't all expire at once. At most a year.
	Jitter time.Duration

	// AllOrNone charges the hits of one Take in one step, or none: if one is
	// denied, no hit is charged that binds (backend.Hit.AllOrNone). See docs/redis.md
	// for what holds where the hits have no partition in common.
	AllOrNone bool

	// Timeout is the budget of a Take, all included; 50 ms by default.
	Timeout time.Duration

	// MaxHits bounds the hits of one trip, which Redis executes at one stretch; 64
	// by default. Only a single request with more exceeds it.
	MaxHits int

	// Trips is how many trips of one partition can be in flight; 1 by default. With
	// 2, less waits behind a lost packet, and trips carry less each.
	Trips int

	// MaxQueue is how many hits of one partition can wait; 4096 by default. Over
	// it hits fail at once.
	MaxQueue int

	// WaitReplicas is how many replicas must have a trip's charges before it is
	// answered, so that a failover to one of these loses none of them; 0 by
	// default. Where they don't within a quarter of Timeout, or the slot is being
	// moved, it is answered all the same.
	WaitReplicas int

	// CallersClock makes Redis take the now of Take for the time. For tests: with
	// more than one replica the budgets are then as wrong as their clocks.
	CallersClock bool
}

const (
	maxPrefix     = 64
	maxPartitions = 1024
)

func (o *Options) setDefaults() error {
	for _, d := range []struct {
		name      string
		value     *int
		byDefault int
		atMost    int
	}{
		{"Partitions", &o.Partitions, 16, maxPartitions},
		{"MaxHits", &o.MaxHits, 64, maxCall},
		{"Trips", &o.Trips, 1, 1024},
		{"MaxQueue", &o.MaxQueue, 4096, 1 << 20},
	} {
		if *d.value == 0 {
			*d.value = d.byDefault
		}
		if *d.value < 1 || *d.value > d.atMost {
			return fmt.Errorf("%s is %d; it can be from 1 to %d", d.name, *d.value, d.atMost)
		}
	}
	if o.Timeout == 0 {
		o.Timeout = 50 * time.Millisecond
	}
	if o.Timeout < time.Millisecond {
		return fmt.Errorf("the timeout is %v; it can be from 1ms", o.Timeout)
	}
	if o.WaitReplicas < 0 {
		return fmt.Errorf("%d replicas to wait for; it can be from 0", o.WaitReplicas)
	}
	if o.Jitter < 0 || o.Jitter > 365*24*time.Hour {
		return fmt.Errorf("the jitter is %v; it can be from 0 to a year", o.Jitter)
	}
	if len(o.KeyPrefix) > maxPrefix {
		return fmt.Errorf("the key prefix has %d bytes; it can have at most %d", len(o.KeyPrefix), maxPrefix)
	}
	return nil
}

// Limiter is a backend.Limiter over Redis. It is safe for concurrent use.
type Limiter struct {
	options   Options
	main      *pool
	perSecond *pool // nil if there is none
	requests  sync.Pool
	stop      context.CancelFunc
	workers   sync.WaitGroup
}

var _ backend.Limiter = (*Limiter)(nil)

// New makes a Limiter. Redis need not be reachable yet: New only checks o. The
// errors say what would be right, and hold no secrets.
func New(o Options) (*Limiter, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	l := &Limiter{options: o, stop: stop}
	l.requests.New = func() any { return newRequest() }
	var err error
	if l.main, err = l.newPool(ctx, o.Main); err != nil {
		stop()
		return nil, fmt.Errorf("redis: %w", err)
	}
	if o.PerSecond != nil {
		if l.perSecond, err = l.newPool(ctx, *o.PerSecond); err != nil {
			l.Close()
			return nil, fmt.Errorf("redis per second: %w", err)
		}
	}
	return l, nil
}

// Close ends the trips in flight and closes all connections. Takes after it fail.
func (l *Limiter) Close() error {
	l.stop()
	var errs []error
	for _, p := range l.pools() {
		for _, lane := range p.lanes {
			lane.close()
		}
		errs = append(errs, p.client.Close())
	}
	l.workers.Wait()
	return errors.Join(errs...)
}

// Ping tells whether every Redis answers: nil if so.
func (l *Limiter) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.options.Timeout)
	defer cancel()
	for _, p := range l.pools() {
		if err := p.ping(ctx); err != nil {
			return fmt.Errorf("ping %s: %w: %w", p.name, backend.ErrUnavailable, err)
		}
	}
	return nil
}

func (l *Limiter) pools() []*pool {
	pools := []*pool{l.main}
	if l.perSecond != nil {
		pools = append(pools, l.perSecond)
	}
	return pools
}

// poolOf is the Redis that counts for lim.
func (l *Limiter) poolOf(lim *limit.Limit) *pool {
	if l.perSecond != nil && lim.Unit == limit.Second && lim.Multiplier == 1 {
		return l.perSecond
	}
	return l.main
}

// jitter is the milliseconds by which the keys of one trip outlive their use.
func (l *Limiter) jitter() int64 {
	if l.options.Jitter < time.Millisecond {
		return 0
	}
	return rand.Int64N(l.options.Jitter.Milliseconds() + 1)
}

// pool is one Redis: single, Sentinel's master, or Cluster.
type pool struct {
	name   string // for errors: the addresses, without secrets
	client client
	lanes  []*lane // one for each partition
	keys   []keys  // of each partition
}

func (l *Limiter) newPool(ctx context.Context, s Server) (*pool, error) {
	a, err := parse(s)
	if err != nil {
		return nil, err
	}
	tags := []string{""}
	if a.kind == Cluster {
		if strings.ContainsAny(l.options.KeyPrefix, "{}") {
			return nil, fmt.Errorf("the key prefix %q holds a brace, which in a cluster would be the hash tag; leave it out", l.options.KeyPrefix)
		}
		tags = hashTags(l.options.Partitions)
	}
	p := &pool{name: a.name(), client: a.open(a.counting(l.options))}
	for _, tag := range tags {
		p.keys = append(p.keys, keys{head: l.options.KeyPrefix + tag + layout})
		p.lanes = append(p.lanes, newLane(ctx, l, p))
	}
	return p, nil
}

// lost tells the client that a node could not be reached, so that it looks for
// who has its slots now. (For a command that is sent only once, go-redis doesn't.)
func (p *pool) lost(ctx context.Context) {
	if c, ok := p.client.(interface{ ReloadState(context.Context) }); ok {
		c.ReloadState(ctx)
	}
}

func (p *pool) ping(ctx context.Context) error {
	return p.client.Ping(ctx).Err()
}
