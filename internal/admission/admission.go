// Package admission bounds what the clients of a listener can take from the process:
// connections and, with gRPC, request bytes in memory and reset streams. It cuts the
// connection that takes most, so that other clients go on.
//
// grpc bounds one message and the streams of one connection. It does not bound the sum over
// all connections, and it does not bound resets.
package admission

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a Gate. A bound of 0 means no bound.
type Options struct {
	// Listener is the name of the listener in the log.
	Listener string

	// MaxConnections bounds the open connections. MaxPeerConnections bounds the open
	// connections of one IP address. Connections of unix sockets have no address.
	MaxConnections, MaxPeerConnections int

	// MaxPendingBytes bounds the request bytes of unanswered calls over all connections.
	// Beyond the bound, the Gate cuts the connection with the most pending bytes.
	MaxPendingBytes int64

	// MaxPeerResets bounds the streams that the clients of one IP address reset in a second.
	// Beyond the bound, a reset cuts its connection, unless most calls of the address were
	// answered in that second. Each connection of a unix socket counts as its own address.
	MaxPeerResets int64

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
	PeerResets                    // too many resets from one address
	PeerCuts                      // too many cut connections of one address
)

// Reasons lists all reasons.
var Reasons = [...]Reason{Connections, PeerConnections, PendingBytes, PeerResets, PeerCuts}

// String returns the name used in metrics and logs.
func (r Reason) String() string {
	return [...]string{"connections", "peer_connections", "pending_bytes", "peer_resets", "peer_cuts"}[r]
}

// Gate admits the connections of one listener and bounds what they take.
type Gate struct {
	o Options

	pendingBytes atomic.Int64
	cutMu        sync.Mutex // held while a connection is cut for its pending bytes

	mu    sync.Mutex // guards the fields below
	conns map[*conn]struct{}
	peers map[string]*peer
	cuts  cuts

	refusals [len(Reasons)]refusals
}

// peer has the connections and the resets of one address.
type peer struct {
	conns int // guarded by Gate.mu

	// resets and answers count the calls of one second. second is the Unix time of this second.
	second          atomic.Int64
	resets, answers atomic.Int64
}

// maxPeerCuts bounds the cut connections of one address in a second. Beyond the bound, new
// connections of the address are refused until the second ends. Otherwise a client could
// connect again at once, and each connection costs CPU time until it is cut.
const maxPeerCuts = 8

// cuts counts the cut connections of one second by address.
type cuts struct {
	second    int64 // Unix time
	byAddress map[string]int
}

// add counts a cut.
func (c *cuts) add(address string, now time.Time) {
	if second := now.Unix(); second != c.second || c.byAddress == nil {
		c.second, c.byAddress = second, map[string]int{}
	}
	c.byAddress[address]++
}

// exceeded reports whether address has more cuts in the second of now than the bound.
func (c *cuts) exceeded(address string, now time.Time) bool {
	return c.second == now.Unix() && c.byAddress[address] > maxPeerCuts
}

// New returns a Gate without connections.
func New(o Options) *Gate {
	if o.Refused == nil {
		o.Refused = func(Reason) {}
	}
	return &Gate{o: o, conns: map[*conn]struct{}{}, peers: map[string]*peer{}}
}

// PendingBytes returns the request bytes of unanswered calls.
func (g *Gate) PendingBytes() int64 { return g.pendingBytes.Load() }

// Connections returns the number of open connections.
func (g *Gate) Connections() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

// admit returns raw as an admitted connection. It closes raw and returns nil if a bound is
// reached.
func (g *Gate) admit(raw net.Conn) *conn {
	address := peerAddress(raw)
	c := &conn{Conn: raw, gate: g, address: address, peer: &peer{}}
	g.mu.Lock()
	reason, refused := g.refusal(address)
	if !refused {
		g.conns[c] = struct{}{}
		if address != "" {
			if known := g.peers[address]; known != nil {
				c.peer = known
			}
			g.peers[address] = c.peer
		}
		c.peer.conns++
	}
	g.mu.Unlock()
	if refused {
		_ = raw.Close()
		g.report(reason, address)
		return nil
	}
	return c
}

// refusal returns the bound that another connection of address would exceed. The caller
// holds g.mu.
func (g *Gate) refusal(address string) (Reason, bool) {
	switch p := g.peers[address]; {
	case address != "" && g.cuts.exceeded(address, time.Now()):
		return PeerCuts, true
	case g.o.MaxConnections > 0 && len(g.conns) >= g.o.MaxConnections:
		return Connections, true
	case g.o.MaxPeerConnections > 0 && p != nil && p.conns >= g.o.MaxPeerConnections:
		return PeerConnections, true
	}
	return 0, false
}

// release forgets a closed connection.
func (g *Gate) release(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	if c.peer.conns--; c.peer.conns == 0 && c.address != "" {
		delete(g.peers, c.address)
	}
}

// addPending adds n pending bytes. If the pending bytes of all connections exceed the bound,
// addPending cuts the connection with the most pending bytes.
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

// mostPending returns the connection with the most pending bytes, or nil if no connection has
// pending bytes.
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

// addReset counts a stream that a client of c reset, and cuts c if the peer resets too many.
func (g *Gate) addReset(c *conn) {
	if g.o.MaxPeerResets == 0 {
		return
	}
	p := c.peer
	p.advance(time.Now())
	if resets := p.resets.Add(1); resets > g.o.MaxPeerResets && resets > p.answers.Load() {
		g.cut(c, PeerResets)
	}
}

// advance sets the counts to 0 if now is in a new second. Concurrent calls at the start of a
// second may lose a few counts.
func (p *peer) advance(now time.Time) {
	second := now.Unix()
	if previous := p.second.Load(); previous != second && p.second.CompareAndSwap(previous, second) {
		p.resets.Store(0)
		p.answers.Store(0)
	}
}

// cut closes c at once.
func (g *Gate) cut(c *conn, reason Reason) {
	if c.Close() != nil {
		return
	}
	g.mu.Lock()
	g.cuts.add(c.address, time.Now())
	g.mu.Unlock()
	g.report(reason, c.address)
}

// report counts a refusal, and logs at most one line a minute for each reason.
func (g *Gate) report(reason Reason, address string) {
	g.o.Refused(reason)
	r := &g.refusals[reason]
	r.count.Add(1)
	now := time.Now()
	last := r.lastLogged.Load()
	if now.UnixNano()-last < int64(time.Minute) && last != 0 || !r.lastLogged.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	g.o.Log.Warn("connections refused", "reason", reason.String(), "count", r.count.Swap(0), "listener", g.o.Listener, "last_address", address)
}

// refusals has the number of refusals for one reason since the last log line, and the time of
// this line in nanoseconds since 1970, or 0.
type refusals struct{ count, lastLogged atomic.Int64 }

// peerAddress returns the IP address of the client, or an empty string for a unix socket.
func peerAddress(c net.Conn) string {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.IP.String()
	}
	return ""
}
