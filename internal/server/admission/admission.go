// Package admission bounds what the clients of a listener can take from the process: connections and, with gRPC,
// request bytes in memory and frames without an answer. It cuts the connection that takes too much. grpc itself
// bounds one message and the streams of one connection only.
package admission

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Options configure a Gate. A bound of 0 means no bound.
type Options struct {
	// Listener is the name of the listener in the log.
	Listener string

	// MaxConnections bounds the open connections, and MaxPeerConnections those of one IP address.
	MaxConnections, MaxPeerConnections int

	// MaxPendingBytes bounds the request bytes of unanswered calls over all connections.
	MaxPendingBytes int64

	// MaxResets bounds the streams that a client resets on one connection in a second, beyond resetsPerAnswer for
	// each answered call. framesPerReset other frames count as a reset.
	MaxResets int64

	// MaxStreams is the number of calls in flight whose frames a new connection can send at once.
	MaxStreams int64

	// Refused is called for each connection that is refused or cut. It can be nil.
	Refused func(Reason)

	Log *slog.Logger
}

// Reason is why a Gate refused or cut a connection.
type Reason uint8

// The reasons.
const (
	Connections     Reason = iota // too many connections
	PeerConnections               // too many connections of one address
	PendingBytes                  // too many bytes of unanswered calls
	Frames                        // too many resets or other frames on one connection
	PeerCuts                      // too many cut connections of one address
)

// Reasons lists all reasons.
var Reasons = [...]Reason{Connections, PeerConnections, PendingBytes, Frames, PeerCuts}

// String returns the name used in metrics and logs.
func (r Reason) String() string {
	return [...]string{"connections", "peer_connections", "pending_bytes", "frames", "peer_cuts"}[r]
}

// Gate admits the connections of one listener and bounds what they take.
type Gate struct {
	o Options

	pendingBytes atomic.Int64
	cutMu        sync.Mutex // held while a connection is cut for its pending bytes

	mu    sync.Mutex // guards the fields below
	conns map[*conn]struct{}
	peers map[string]int // open connections by address

	cuts      map[string]int // cut connections by address, in cutSecond
	cutSecond int64          // Unix time

	refusals [len(Reasons)]refusals
}

// maxPeerCuts bounds the cut connections of one address in a second. Further connections of the address are refused
// until the second ends, because each costs CPU time until it is cut. An address with a connection that has got an
// answer is never refused, because an innocent client can share the address.
const maxPeerCuts = 8

// New returns a Gate without connections.
func New(o Options) *Gate {
	if o.Refused == nil {
		o.Refused = func(Reason) {}
	}
	g := &Gate{o: o, conns: map[*conn]struct{}{}, peers: map[string]int{}}
	for i := range g.refusals {
		g.refusals[i].log.Interval = time.Minute
	}
	return g
}

// PendingBytes returns the request bytes of unanswered calls.
func (g *Gate) PendingBytes() int64 { return g.pendingBytes.Load() }

// Connections returns the number of open connections.
func (g *Gate) Connections() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

// admit returns raw as an admitted connection. At a bound, it closes raw and returns nil.
func (g *Gate) admit(raw net.Conn) *conn {
	address := "" // of a unix socket
	if a, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		address = a.IP.String()
	}
	c := &conn{Conn: raw, gate: g, address: address}
	g.mu.Lock()
	reason, refused := g.refusal(address)
	if !refused {
		g.conns[c] = struct{}{}
		g.peers[address]++
	}
	g.mu.Unlock()
	if refused {
		_ = raw.Close()
		g.report(reason, address)
		return nil
	}
	return c
}

// refusal returns the bound that another connection of address would exceed. The caller holds g.mu.
func (g *Gate) refusal(address string) (Reason, bool) {
	hasAddress := address != "" // unix sockets have none
	switch {
	case hasAddress && g.cutSecond == time.Now().Unix() && g.cuts[address] > maxPeerCuts && !g.getsAnswers(address):
		return PeerCuts, true
	case g.o.MaxConnections > 0 && len(g.conns) >= g.o.MaxConnections:
		return Connections, true
	case hasAddress && g.o.MaxPeerConnections > 0 && g.peers[address] >= g.o.MaxPeerConnections:
		return PeerConnections, true
	}
	return 0, false
}

// getsAnswers reports whether an open connection of address has got an answer. The caller holds g.mu.
func (g *Gate) getsAnswers(address string) bool {
	for c := range g.conns {
		if c.address == address && c.answers.Load() > 0 {
			return true
		}
	}
	return false
}

func (g *Gate) release(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	if g.peers[c.address]--; g.peers[c.address] == 0 {
		delete(g.peers, c.address)
	}
}

// addPending adds n pending bytes. At the bound, it cuts the connection with the most pending bytes.
func (g *Gate) addPending(n int64) {
	total := g.pendingBytes.Add(n)
	if n < 0 || g.o.MaxPendingBytes == 0 || total <= g.o.MaxPendingBytes {
		return
	}
	g.cutMu.Lock()
	defer g.cutMu.Unlock()
	if g.pendingBytes.Load() <= g.o.MaxPendingBytes {
		return // another call has cut a connection
	}
	if c := g.mostPending(); c != nil {
		g.cut(c, PendingBytes)
	}
}

func (g *Gate) mostPending() (most *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	bytes := int64(0)
	for c := range g.conns {
		if n := c.pendingBytes.Load(); n > bytes {
			most, bytes = c, n
		}
	}
	return most
}

// cut closes c at once.
func (g *Gate) cut(c *conn, reason Reason) {
	if c.Close() != nil {
		return
	}
	g.mu.Lock()
	if second := time.Now().Unix(); second != g.cutSecond {
		g.cuts, g.cutSecond = map[string]int{}, second
	}
	g.cuts[c.address]++
	g.mu.Unlock()
	g.report(reason, c.address)
}

// report counts a refusal, and logs at most one line a minute for each reason.
func (g *Gate) report(reason Reason, address string) {
	g.o.Refused(reason)
	r := &g.refusals[reason]
	r.count.Add(1)
	r.log.Do(func() {
		g.o.Log.Warn("connections refused", "reason", reason.String(), "count", r.count.Swap(0), "listener", g.o.Listener, "last_address", address)
	})
}

// refusals counts the refusals for one reason since the last log line.
type refusals struct {
	count atomic.Int64
	log   rate.Sometimes
}
