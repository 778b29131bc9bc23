package quota

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	division "github.com/seed-81f232ab/rls/limit/quota"
)

// client has what the streams from one IP address use. Several Envoys can have one address.
type client struct {
	ip       string
	memory   int64          // bytes of its streams, buckets and departures
	holders  map[uint64]int // its holders in each group, with its departures; the key is group.hash
	lastTurn int64          // the last turn of a group that waits for an update because of this client
}

// departure is a holder whose bucket has left its group. The holder counts until its last grant has expired.
type departure struct {
	client *client
	group  uint64 // group.hash
	expiry time.Time
}

// The bytes that count for a stream, a departure and a bucket. For a bucket, idCopies times the bytes of its id count too.
// All clients together may use Options.MaxBuckets times maxMemory.
const (
	streamMemory    = 32 << 10
	departureMemory = 128
	bucketMemory    = 1 << 10
	idCopies        = 4
	maxMemory       = 64 << 10
)

// clientOf returns the client for a new stream of this address, or nil if the client uses too much memory.
func (s *Service) clientOf(ip string) *client {
	c := cmp.Or(s.clients[ip], &client{ip: ip, holders: map[uint64]int{}})
	if !s.takeMemory(c, streamMemory) {
		return nil
	}
	s.clients[ip] = c
	return c
}

// takeMemory counts bytes for c. It returns false if c would then use more memory than is free. So the first client can use
// half of the memory, and the second client can use half of the rest.
func (s *Service) takeMemory(c *client, bytes int64) bool {
	freeBytes := maxMemory*int64(s.options.MaxBuckets) - s.memory - bytes
	if c.memory+bytes > freeBytes {
		return false
	}
	c.memory += bytes
	s.memory += bytes
	return true
}

func (s *Service) freeMemory(c *client, bytes int64) {
	c.memory -= bytes
	s.memory -= bytes
	if c.memory == 0 {
		delete(s.clients, c.ip)
	}
}

func (s *Service) forgetDepartures(now time.Time) {
	s.departures = slices.DeleteFunc(s.departures, func(d departure) bool {
		if now.Before(d.expiry) {
			return false
		}
		if d.client.holders[d.group]--; d.client.holders[d.group] == 0 {
			delete(d.client.holders, d.group)
		}
		s.freeMemory(d.client, departureMemory)
		return true
	})
}

// refuse denies the requests of b, because the limit with this path has too many holders.
func (s *Service) refuse(b *bucket, path string) {
	s.counts.IgnoredReports++
	s.logIgnored(b.stream, fmt.Sprintf("limit %s: got too many Envoys, want at most %d, and half of the free places for one address", path, division.MaxHolders))
	b.sendBlanketRule(denyAll, fixedAnswerTTL)
}

func (b *bucket) memoryBytes() int64 { return bucketMemory + idCopies*int64(b.key.bytes()) }

// forget ends b, apart from the entry in its stream.
func (s *Service) forget(b *bucket) {
	s.leaveGroup(b)
	s.freeMemory(b.stream.client, b.memoryBytes())
}

// markDueFor makes a tick update g, because of a report of c. Clients take turns: a client with many groups delays mostly
// its own groups.
func (s *Service) markDueFor(g *group, c *client) {
	turn := max(c.lastTurn, s.updatedTurn) + 1
	if g.isDue && g.turn <= turn {
		return
	}
	c.lastTurn, g.turn = turn, turn
	s.markDue(g)
}
