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

// servers is a memcache.ServerSelector. It has the names of hosts, so each new connection looks up the IP address of its
// host.
type servers struct{ addresses atomic.Pointer[[]string] }

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

// newServers returns the servers of o. If o has an SRV name, it looks up the name again until ctx is done.
func newServers(ctx context.Context, o *Options) (*servers, error) {
	s := &servers{}
	switch {
	case (o.SRV == "") == (len(o.Servers) == 0):
		return nil, errors.New("want either servers or an SRV name")
	case o.SRV == "":
		s.addresses.Store(&o.Servers)
		return s, nil
	}
	if err := s.lookUp(ctx, o); err != nil || o.SRVRefresh == 0 {
		return s, err
	}
	go func() {
		for wait.Sleep(ctx, o.SRVRefresh) {
			if err := s.lookUp(ctx, o); err != nil {
				o.Log.Warn("memcached servers not refreshed; the old servers stay", "error", err)
			}
		}
	}()
	return s, nil
}

// lookUp sets the servers to the SRV records of o, in the order of their addresses.
func (s *servers) lookUp(ctx context.Context, o *Options) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
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
	s.addresses.Store(&addresses)
	return nil
}

func (s *servers) list() []string { return *s.addresses.Load() }

// PickServer implements memcache.ServerSelector.
func (s *servers) PickServer(key string) (net.Addr, error) {
	addresses := s.list()
	return server(addresses[hash(key)%len(addresses)]), nil
}

// Each implements memcache.ServerSelector.
func (s *servers) Each(f func(net.Addr) error) error {
	for _, a := range s.list() {
		if err := f(server(a)); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	return nil
}

func hash(key string) int { return int(crc32.ChecksumIEEE([]byte(key))) }

// Shards returns the number of shards. Each server of the first list is a shard.
func (l *Limiter) Shards() int { return l.shards }

// ShardOf returns the shard of a hit. The windows of a counter can be in different shards.
func (l *Limiter) ShardOf(h *backend.Hit) int {
	return l.shardOf(l.counterOf(h, time.Now().UnixMicro()).name)
}

func (l *Limiter) shardOf(key string) int { return hash(key) % len(l.servers.list()) % l.shards }

// Probe returns nil if a server of the shard stores a value, or if the shard no longer has a server.
func (l *Limiter) Probe(_ context.Context, shard int) error {
	for i := 0; shard < len(l.servers.list()); i++ { // until a key is in the shard
		key := l.options.KeyPrefix + "probe:" + strconv.Itoa(i)
		if l.shardOf(key) != shard {
			continue
		}
		err := l.client.Set(&memcache.Item{Key: key, Value: []byte("0"), Expiration: 60})
		if err != nil {
			_ = l.client.Close() // idle connections may be broken too
		}
		return unavailableError(err)
	}
	return nil
}
