package memcached

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// servers is a memcache.ServerSelector that looks up the IP address of a host for each connection.
type servers struct{ current atomic.Pointer[[]server] }

// server is a net.Addr: host:port, or the path of a socket.
type server string

// Network implements net.Addr.
func (s server) Network() string {
	if strings.Contains(string(s), "/") {
		return "unix"
	}
	return "tcp"
}

// String implements net.Addr.
func (s server) String() string { return string(s) }

// newServers returns the servers of o. It refreshes them until ctx is done.
func newServers(ctx context.Context, o *Options) (*servers, error) {
	s := &servers{}
	switch {
	case (o.SRV == "") == (len(o.Servers) == 0):
		return nil, errors.New("want either servers or an SRV name")
	case o.SRV == "":
		s.set(o.Servers)
		return s, nil
	}
	if err := s.lookUp(ctx, o); err != nil || o.SRVRefresh == 0 {
		return s, err
	}
	go func() {
		for wait.Sleep(ctx, o.SRVRefresh) {
			if err := s.lookUp(ctx, o); err != nil {
				o.Log.Warn("memcached servers not refreshed; the last ones stay", "error", err)
			}
		}
	}()
	return s, nil
}

func (s *servers) set(addresses []string) {
	var all []server
	for _, a := range addresses {
		all = append(all, server(a))
	}
	s.current.Store(&all)
}

// lookUp sets the servers to the SRV records of o, in the order of their names.
func (s *servers) lookUp(ctx context.Context, o *Options) error {
	const timeout = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	lookup := o.LookupSRV
	if lookup == nil {
		lookup = net.DefaultResolver.LookupSRV
	}
	_, records, err := lookup(ctx, "", "", o.SRV)
	if err != nil || len(records) == 0 {
		return fmt.Errorf("got no SRV records of %s: %w", o.SRV, err)
	}
	var addresses []string
	for _, r := range records {
		addresses = append(addresses, net.JoinHostPort(r.Target, strconv.Itoa(int(r.Port))))
	}
	slices.Sort(addresses)
	s.set(addresses)
	return nil
}

func (s *servers) list() []server { return *s.current.Load() }

// PickServer implements memcache.ServerSelector.
func (s *servers) PickServer(key string) (net.Addr, error) {
	all := s.list()
	return all[hash(key)%len(all)], nil
}

// Each implements memcache.ServerSelector.
func (s *servers) Each(f func(net.Addr) error) error {
	for _, a := range s.list() {
		if err := f(a); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	return nil
}

func hash(key string) int { return int(crc32.ChecksumIEEE([]byte(key))) }

// Shards returns the number of parts of the counters that fail together: the servers at the start.
func (l *Limiter) Shards() int { return l.shards }

// ShardOf returns the shard of a hit. The windows of a counter can be in different shards.
func (l *Limiter) ShardOf(h *backend.Hit) int {
	if l.shards == 1 {
		return 0
	}
	return l.shardOf(l.counterOf(h, time.Now().UnixMicro()).name)
}

func (l *Limiter) shardOf(key string) int { return hash(key) % len(l.servers.list()) % l.shards }

// Probe returns nil if a server of the shard stores a value, or if the shard has lost its server.
func (l *Limiter) Probe(_ context.Context, shard int) error {
	const seconds = 60
	for i := 0; shard < len(l.servers.list()); i++ {
		key := l.options.KeyPrefix + "probe:" + strconv.Itoa(i)
		if l.shardOf(key) != shard {
			continue
		}
		err := l.client.Set(&memcache.Item{Key: key, Value: []byte("0"), Expiration: seconds})
		if err != nil {
			_ = l.client.Close() // idle connections may be broken too
		}
		return unavailable(err)
	}
	return nil
}
