// Package redis is a backend.Limiter that counts in Redis, so that all replicas share one counter. It uses scripts
// (package lua) and the clock of Redis. docs/design.md lists the steps of a hit.
//
//   - partition: the keys that one script may touch; each hash tag of a Cluster has its own partition (key.go);
//   - request: a Take in progress; its parts go to the queues of the partitions (request.go, queue.go);
//   - batch: the hits of many requests that one worker sends together (batch.go, send.go);
//   - plain commands: INCR and other commands that charge a fixed window without the script (counters.go).
//
// A command is sent again only if Redis has refused to execute it. If a connection breaks, the hits of the batch fail.
package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the settings of a Limiter. A zero value means the default. The caller checks the bounds that the fields
// state.
type Options struct {
	Main      Server        // the Redis that counts
	PerSecond *Server       // a second Redis, for the limits with a window of exactly one second
	KeyPrefix string        // the start of all keys; at most 64 bytes, and no braces in a Cluster
	Jitter    time.Duration // maximum of the random time that is added to the time to live of a key; at most a year

	// Partitions is the number of hash tags of a Cluster; default 12, at most 1024. All replicas need the same
	// number, because the number determines the keys.
	Partitions int

	// Timeout is the budget of a Take, at least 1 ms; default 50 ms. With AutoTimeout, the budget follows the
	// measured round trip, from 50 to 500 ms.
	Timeout     time.Duration
	AutoTimeout bool

	MaxBatchSize       int // hits in a batch; default 256, at most 4096; a request with more hits is one batch
	MaxInflightBatches int // batches of one partition at the same time; default 1
	MaxQueueSize       int // hits in the queue of one partition; default 4096; further hits fail

	// WaitReplicas is the number of Redis replicas that must have the charges of a batch before rls answers the
	// hits; default 0. If the replicas need more than a quarter of Timeout, rls answers without them. rls then sets
	// HasTooFewReplicas of the batch, and batches of the next second don't wait.
	WaitReplicas int

	Overrides    bool // rls keeps overrides in Main, so Check examines the rights for overrides
	CallersClock bool // Redis uses the argument now of Take as the time; for tests

	// Dial opens the connections, with TLS if necessary; the default uses the network of this machine.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	Observer Observer // nil means none
	Tracer   Tracer   // nil means none
}

func (o *Options) setDefaults() {
	o.Partitions = cmp.Or(o.Partitions, 12)
	o.MaxBatchSize = cmp.Or(o.MaxBatchSize, 256)
	o.MaxInflightBatches = cmp.Or(o.MaxInflightBatches, 1)
	o.MaxQueueSize = cmp.Or(o.MaxQueueSize, 4096)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	if o.AutoTimeout {
		o.Timeout = maxAutoTimeout // the connections need the maximum, because their options can't change later
	}
	o.Observer = cmp.Or[Observer](o.Observer, noObserver{})
}

// Limiter is a backend.Limiter over Redis. It is safe for concurrent use.
type Limiter struct {
	options   Options
	instances []*redisInstance  // the main Redis, and then the Redis for limits per second if it exists
	queues    []*partitionQueue // the queue of each shard; the index is the number of the shard
	requests  sync.Pool
	probes    *probes

	autoTimeout atomic.Int64 // the current timeout of AutoTimeout in nanoseconds
	cpuWatch    cpuWatch

	stop    context.CancelFunc
	workers sync.WaitGroup
}

// New returns a Limiter. Redis need not be reachable. The errors state the allowed values and hold no secrets.
func New(o Options) (*Limiter, error) {
	o.setDefaults()
	ctx, stop := context.WithCancel(context.Background())
	l := &Limiter{options: o, stop: stop}
	l.autoTimeout.Store(int64(defaultTimeout))
	l.workers.Go(func() { l.cpuWatch.run(ctx) })
	err := l.addInstance(ctx, o.Main)
	if err == nil && o.PerSecond != nil {
		if err = l.addInstance(ctx, *o.PerSecond); err != nil {
			err = fmt.Errorf("for limits per second: %w", err)
		}
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("redis: %w", err)
	}
	l.probes = newProbes(l.Shards())
	return l, nil
}

// Addresses returns the addresses of all servers that Options names, without secrets.
func (l *Limiter) Addresses() string {
	var names []string
	for _, instance := range l.instances {
		names = append(names, instance.name)
	}
	return strings.Join(names, " ")
}

// Close aborts the batches in flight and closes all connections. Later Takes fail.
func (l *Limiter) Close() error {
	l.stop()
	for _, q := range l.queues {
		q.close()
	}
	var errs []error
	for _, instance := range l.instances {
		errs = append(errs, instance.client.Close())
	}
	l.workers.Wait()
	return errors.Join(errs...)
}

// minPingTime is the least time that Ping waits. A ping on a new connection takes several round trips.
const minPingTime = time.Second

// Ping returns nil if every Redis answers.
func (l *Limiter) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(l.Timeout(), minPingTime))
	defer cancel()
	for _, instance := range l.instances {
		if err := instance.client.Ping(ctx).Err(); err != nil {
			return fmt.Errorf("ping %s: %w", instance.name, newOutageError(err))
		}
	}
	return nil
}
