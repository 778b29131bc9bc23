package quota

// client has what the streams from one IP address use. Several Envoys can have one address.
type client struct {
	ip       string
	streams  int
	memory   int64 // bytes of its streams and buckets
	lastTurn int64 // the last turn of a group that waits for an update because of this client
}

// The bytes that count for a stream, and for a bucket in addition to idCopies times the bytes of its id. All streams and
// buckets together may have maxMemory bytes for each of the MaxBuckets that a stream may have.
const (
	streamMemory = 32 << 10
	bucketMemory = 1 << 10
	idCopies     = 4
	maxMemory    = 64 << 10
)

// join returns the client with this address for one more stream, or nil if the client uses too much memory.
func (s *Service) join(ip string) *client {
	c := s.clients[ip]
	if c == nil {
		c = &client{ip: ip}
	}
	if !s.takeMemory(c, streamMemory) {
		return nil
	}
	s.clients[ip] = c
	c.streams++
	return c
}

func (s *Service) leave(c *client) {
	s.freeMemory(c, streamMemory)
	if c.streams--; c.streams == 0 {
		delete(s.clients, c.ip)
	}
}

// takeMemory counts bytes for c. It returns false if c would use more than what is free for others. So the first client can
// use half of the memory, and the second one half of the rest.
func (s *Service) takeMemory(c *client, bytes int64) bool {
	free := maxMemory*int64(s.options.MaxBuckets) - s.memory - bytes
	if c.memory+bytes > free {
		return false
	}
	c.memory += bytes
	s.memory += bytes
	return true
}

func (s *Service) freeMemory(c *client, bytes int64) {
	c.memory -= bytes
	s.memory -= bytes
}

func (b *bucket) memoryBytes() int64 { return bucketMemory + idCopies*int64(len(b.key)) }

// forget ends b, apart from the entry in its stream.
func (s *Service) forget(b *bucket) {
	s.leaveGroup(b)
	s.freeMemory(b.stream.client, b.memoryBytes())
}

// markDueFor makes a tick update g, because of a report of c. Clients take turns: a client with many groups delays mostly
// its own groups.
func (s *Service) markDueFor(g *group, c *client) {
	turn := max(c.lastTurn, s.turn) + 1
	if g.isDue && g.turn <= turn {
		return
	}
	c.lastTurn, g.turn = turn, turn
	s.markDue(g)
}
