// Package admission bounds the resources that the clients of a listener can use. It bounds the connections. With gRPC, it
// also bounds the request bytes in memory, and the frames that get no answer but cost CPU time, such as resets and pings.
// If a client exceeds a bound, the package cuts the connection, which means that it closes the connection at
// once. Package grpc bounds one message and the streams of one connection, but not all connections together.
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

	// MaxConnections bounds the open connections. MaxPeerConnections bounds the open connections of one IP address.
	MaxConnections, MaxPeerConnections int

	// MaxPendingBytes bounds the request bytes of unanswered calls over all connections.
	MaxPendingBytes int64

	// MaxResets is the number of streams that a client can reset on one connection in each second. Each answered
	// call allows resetsPerAnswer more resets. Other frames count too: framesPerReset frames count as one reset.
	MaxResets int64

	// MaxStreams is the number of calls that a connection can have in flight. A new connection can send the frames of
	// MaxStreams calls at once.
	MaxStreams int64

	// OnRefusal is called for each connection that the Gate refuses or cuts.
	OnRefusal func(Reason)

	// OnReset is called for each stream that a client resets, because the client gave up the call before it got the whole
	// answer. OnReset can be nil.
	OnReset func()

	Log *slog.Logger
}

// Reason is the reason why a Gate refused or cut a connection.
type Reason uint8

// The reasons.
const (
	ReasonConnections     Reason = iota // too many connections
	ReasonPeerConnections               // too many connections of one address
	ReasonPendingBytes                  // too many bytes of unanswered calls
	ReasonFrames                        // too many resets or other frames on one connection
	ReasonPeerCuts                      // too many cut connections of one address
)

// Reasons lists all reasons.
var Reasons = [...]Reason{ReasonConnections, ReasonPeerConnections, ReasonPendingBytes, ReasonFrames, ReasonPeerCuts}

// String returns the name of the reason in metrics and logs.
func (r Reason) String() string {
	return [...]string{"connections", "peer_connections", "pending_bytes", "frames", "peer_cuts"}[r]
}

// Setting returns the setting that bounds the number of connections, or "" if the reason is another bound.
func (r Reason) Setting() string {
	switch r {
	case ReasonConnections:
		return "MAX_CONNECTIONS"
	case ReasonPeerConnections:
		return "MAX_PEER_CONNECTIONS"
	}
	return ""
}

// Gate admits the connections of one listener and bounds the resources that they use.
type Gate struct {
	options Options

	pendingBytes atomic.Int64
	cutMu        sync.Mutex // is locked while the Gate cuts a connection because of pending bytes

	mu             sync.Mutex // guards the fields below
	conns          map[*conn]struct{}
	connsByAddress map[string]int // the number of open connections; the key is the address

	cutsByAddress map[string]int // the number of connections that were cut in cutSecond; the key is the address
	cutSecond     int64          // the Unix time of the last cut, in seconds

	refusalLogs [len(Reasons)]refusalLog // the index is the Reason
}

// maxPeerCuts bounds the cut connections of one address in a second. With more cuts, the Gate refuses connections of the
// address until the second ends, because a connection costs CPU time before it is cut. If another connection of the address
// has got an answer, the Gate still admits connections, because a good client can share the address.
const maxPeerCuts = 8

// New returns a Gate without connections.
func New(o Options) *Gate {
	if o.OnReset == nil {
		o.OnReset = func() {}
	}
	g := &Gate{options: o, conns: map[*conn]struct{}{}, connsByAddress: map[string]int{}}
	for i := range g.refusalLogs {
		g.refusalLogs[i].timer.Interval = time.Minute
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

// admit returns rawConn as an admitted connection. If rawConn exceeds a bound, admit closes it and returns nil.
func (g *Gate) admit(rawConn net.Conn) *conn {
	address := "" // a unix socket has no address
	if a, ok := rawConn.RemoteAddr().(*net.TCPAddr); ok {
		address = a.IP.String()
	}
	c := &conn{Conn: rawConn, gate: g, address: address}
	g.mu.Lock()
	reason, isRefused := g.refusalReason(address)
	if !isRefused {
		g.conns[c] = struct{}{}
		g.connsByAddress[address]++
	}
	g.mu.Unlock()
	if isRefused {
		_ = rawConn.Close()
		g.reportRefusal(reason, address)
		return nil
	}
	return c
}

// refusalReason returns the reason to refuse one more connection of address, if any. The caller holds g.mu.
func (g *Gate) refusalReason(address string) (_ Reason, isRefused bool) {
	hasAddress := address != ""
	hasManyCuts := g.cutSecond == time.Now().Unix() && g.cutsByAddress[address] > maxPeerCuts
	switch {
	case hasAddress && hasManyCuts && !g.hasReceivedAnswer(address):
		return ReasonPeerCuts, true
	case g.options.MaxConnections > 0 && len(g.conns) >= g.options.MaxConnections:
		return ReasonConnections, true
	case hasAddress && g.options.MaxPeerConnections > 0 && g.connsByAddress[address] >= g.options.MaxPeerConnections:
		return ReasonPeerConnections, true
	}
	return 0, false
}

// hasReceivedAnswer reports whether an open connection of address has got an answer. The caller holds g.mu.
func (g *Gate) hasReceivedAnswer(address string) bool {
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
	if g.connsByAddress[c.address]--; g.connsByAddress[c.address] == 0 {
		delete(g.connsByAddress, c.address)
	}
}

// addPendingBytes adds n pending bytes. If the sum exceeds the bound, it cuts the connection with the most pending bytes.
func (g *Gate) addPendingBytes(n int64) {
	total := g.pendingBytes.Add(n)
	if n < 0 || g.options.MaxPendingBytes == 0 || total <= g.options.MaxPendingBytes {
		return
	}
	g.cutMu.Lock()
	defer g.cutMu.Unlock()
	if g.pendingBytes.Load() <= g.options.MaxPendingBytes {
		return // another call has cut a connection
	}
	if c := g.largestConn(); c != nil {
		g.cut(c, ReasonPendingBytes)
	}
}

func (g *Gate) largestConn() (largest *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	largestBytes := int64(0)
	for c := range g.conns {
		if n := c.pendingBytes.Load(); n > largestBytes {
			largest, largestBytes = c, n
		}
	}
	return largest
}

func (g *Gate) cut(c *conn, reason Reason) {
	if c.Close() != nil {
		return
	}
	g.mu.Lock()
	if second := time.Now().Unix(); second != g.cutSecond {
		g.cutsByAddress, g.cutSecond = map[string]int{}, second
	}
	g.cutsByAddress[c.address]++
	g.mu.Unlock()
	g.reportRefusal(reason, c.address)
}

// reportRefusal counts a refusal, and logs at most one line a minute for each reason.
func (g *Gate) reportRefusal(reason Reason, address string) {
	g.options.OnRefusal(reason)
	l := &g.refusalLogs[reason]
	l.count.Add(1)
	l.timer.Do(func() {
		attrs := []any{"reason", reason.String(), "count", l.count.Swap(0), "listener", g.options.Listener, "last_address", address}
		if setting := reason.Setting(); setting != "" {
			attrs = append(attrs, "advice", "raise "+setting+" (docs/production.md#connections-of-envoy)")
		}
		g.options.Log.Warn("connections refused", attrs...)
	})
}

type refusalLog struct {
	count atomic.Int64
	timer rate.Sometimes
}
