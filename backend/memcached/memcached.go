// Package memcached is a backend.Limiter that counts in memcached, with the clock of the service.
//
// A fixed window is a number that memcached increments. Other counters are states of package limit. The Limiter reads a
// state, changes the state, and writes it if no other replica has written the state since the read. After a broken
// connection, the Limiter does not repeat a command, because memcached may have executed the command.
package memcached

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Options are the settings of a Limiter.
type Options struct {
	Servers     []string      // host:port, or paths of sockets; all replicas need the same list
	SRV         string        // a name with SRV records, which replaces Servers, such as _memcache._tcp.example.com
	SRVRefresh  time.Duration // pause between two lookups of SRV; 0 means a single lookup
	Connections int           // maximum number of connections to each server
	TLS         *tls.Config   // nil means plain text
	KeyPrefix   string        // start of all keys; at most 64 bytes, without spaces and control characters
	Jitter      time.Duration // maximum of the random time that is added to the time to live of a key
	Timeout     time.Duration // budget of a Take, and of each command
	Log         *slog.Logger  // gets a line if a later lookup of SRV fails

	// LookupSRV looks up SRV; default net.Resolver.LookupSRV, with an empty service and proto.
	LookupSRV func(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// Limiter is a backend.Limiter over memcached. It is safe for concurrent use.
type Limiter struct {
	*backend.BoundedLimiter
	options Options
	servers *servers
	client  *memcache.Client
	shards  int            // the number of shards
	changes [64]sync.Mutex // the mutexes for changes of counters; the hash of a counter's name chooses its mutex
	stop    context.CancelFunc
}

var source = backend.NewSource("memcached")

// New returns a Limiter. It needs no reachable servers, but SRV must have records.
func New(o Options) (*Limiter, error) {
	if len(o.KeyPrefix) > 64 || !isSafe(o.KeyPrefix) {
		return nil, fmt.Errorf("memcached: key prefix: got %q, want at most 64 bytes without spaces and control characters", o.KeyPrefix)
	}
	ctx, stop := context.WithCancel(context.Background())
	servers, err := newServers(ctx, &o)
	if err != nil {
		stop()
		return nil, fmt.Errorf("memcached: %w", err)
	}
	l := &Limiter{options: o, servers: servers, client: memcache.NewFromSelector(servers), shards: len(servers.list()), stop: stop}
	l.client.Timeout, l.client.MaxIdleConns = o.Timeout, o.Connections
	if o.TLS != nil {
		l.client.DialContext = (&tls.Dialer{Config: o.TLS}).DialContext
	}
	l.BoundedLimiter = backend.NewBoundedLimiter(unbounded{l}, o.Timeout, o.Connections)
	return l, nil
}

// Close waits for the Takes in flight and closes all connections.
func (l *Limiter) Close() error {
	l.stop()
	l.BoundedLimiter.Close()
	return l.client.Close()
}

// Ping returns nil if every server answers.
func (l *Limiter) Ping(context.Context) error { return unavailableError(l.client.Ping()) }

// ResetPrefix implements backend.PrefixResetter. It always fails.
func (l *Limiter) ResetPrefix(context.Context, backend.KeyPrefix, int, bool) (backend.PrefixReset, error) {
	return backend.PrefixReset{}, errors.New("memcached can't list its keys; reset single counters")
}

// unavailableError returns err if err is nil or a *backend.Error, and otherwise a *backend.Error with the cause err.
func unavailableError(err error) error {
	if err == nil || errors.Is(err, backend.ErrUnavailable) {
		return err
	}
	return &backend.Error{Reason: backend.ReasonOutage, Cause: fmt.Errorf("memcached: %w", err)}
}

// unbounded is a Limiter without the bound of backend.BoundedLimiter: a Take lasts until memcached has answered.
type unbounded struct{ *Limiter }

// Take implements backend.Limiter. It answers the hits one after the other.
func (l unbounded) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	counters, hasGroup := make([]counter, len(hits)), backend.HasGroup(hits)
	var names []string // the names of counters with a value that decides a hit
	for i := range hits {
		c := l.counterOf(&hits[i], now.UnixMicro())
		counters[i] = c
		if hasGroup || !c.isIncrement() {
			names = append(names, c.name)
		}
	}
	items, err := l.read(names)
	for i := range counters {
		results[i] = backend.Result{Err: unavailableError(err)}
		if err == nil && !hasGroup {
			results[i] = l.charge(ctx, &counters[i], items)
		}
	}
	if err == nil && hasGroup {
		l.takeGroup(ctx, counters, hits, results, items)
	}
}

// takeGroup takes hits with a group. memcached can't change several keys in one step. So takeGroup first decides the hits
// in a trial: with items, and without a charge. If another caller charges a counter after the trial, memcached can still
// deny a hit. takeGroup then refunds the group. Other callers see the charges until the refund.
func (l *Limiter) takeGroup(ctx context.Context, counters []counter, hits []backend.Hit, results []backend.Result, items items) {
	peeks, trialValues := make([]limit.Result, len(hits)), map[string]*value{}
	for i := range counters {
		c := &counters[i]
		v, err := c.parse(items[c.name])
		if err != nil {
			results[i].Err = unavailableError(err)
			continue
		}
		peeks[i] = v.take(c, 0)
		if trialValues[c.name] == nil {
			trialValues[c.name] = &v
		}
		results[i] = c.resultOf(trialValues[c.name].take(c, c.n))
	}
	isTrialDenied := backend.IsGroupDenied(hits, results)
	for i := range counters {
		if results[i].Err == nil && (!isTrialDenied || !hits[i].IsInGroup()) {
			results[i] = l.charge(ctx, &counters[i], items)
		}
	}
	if !backend.IsGroupDenied(hits, results) {
		return
	}
	for i := range counters {
		r := &results[i]
		if r.Err != nil || !r.Allowed || !hits[i].IsInGroup() {
			continue
		}
		if !isTrialDenied {
			counters[i].n *= -1
			refund := l.charge(context.WithoutCancel(ctx), &counters[i], items)
			if refund.Err != nil {
				continue // the hits stay charged
			}
			peeks[i] = refund.Result
		}
		r.Remaining, r.ResetAfter = peeks[i].Remaining, peeks[i].ResetAfter
	}
}
