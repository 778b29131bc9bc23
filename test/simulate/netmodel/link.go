// Package netmodel is a model of the network between a replica and Redis. Connections have
// delays, and a Link can be cut, slowed and reset, as a partition and a proxy do.
package netmodel

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// Link is the network between one client and one server.
type Link struct {
	name  string
	serve func(*Conn)                  // serves a connection at its server's end
	draw  func() (delay time.Duration) // of one write

	mu          sync.Mutex // guards the fields below
	changed     chan struct{}
	conns       map[int]pair
	opened      int
	cutToServer bool      // bytes to the server are held
	cutToClient bool      // bytes to the client are held
	healed      time.Time // end of the last cut
	refuses     bool
	slowedFor   time.Duration
}

// pair is both ends of a connection.
type pair struct{ client, server *Conn }

// NewLink returns a Link. serve serves the server's end of each connection, and draw returns the
// delay of each write.
func NewLink(name string, serve func(*Conn), draw func() time.Duration) *Link {
	return &Link{name: name, serve: serve, draw: draw, changed: make(chan struct{}), conns: map[int]pair{}}
}

// Dial opens a connection, as a net.Dialer does.
func (l *Link) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	timer := time.NewTimer(2 * l.delay())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, dialError(ctx.Err())
	}
	for l.IsCut() {
		select {
		case <-l.changes():
		case <-ctx.Done():
			return nil, dialError(ctx.Err())
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuses {
		return nil, dialError(syscall.ECONNREFUSED)
	}
	up, down := newStream(l, l.isCutToServer), newStream(l, l.isCutToClient)
	id := l.opened
	l.opened++
	remove := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, id)
	}
	p := pair{&Conn{in: down, out: up, link: l, isEnded: func() {}}, &Conn{in: up, out: down, link: l, isEnded: remove}}
	l.conns[id] = p
	go l.serve(p.server)
	return p.client, nil
}

func dialError(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }

// delay returns the delay of the next write.
func (l *Link) delay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.draw() + l.slowedFor
}

// changes returns a channel that is closed at the next change of the Link.
func (l *Link) changes() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// IsCut reports whether the Link is cut in a direction.
func (l *Link) IsCut() bool { return l.isCutToServer() || l.isCutToClient() }

func (l *Link) isCutToServer() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cutToServer
}

func (l *Link) isCutToClient() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cutToClient
}

// Cut holds all bytes and new connections until Heal. Then the bytes arrive, as TCP sends them
// again.
func (l *Link) Cut() { l.change(func() { l.cutToServer, l.cutToClient = true, true }) }

// CutToServer is Cut for the bytes to the server only.
func (l *Link) CutToServer() { l.change(func() { l.cutToServer = true }) }

// CutToClient is Cut for the bytes to the client only.
func (l *Link) CutToClient() { l.change(func() { l.cutToClient = true }) }

// Heal ends Cut, Refuse and Slow.
func (l *Link) Heal() {
	l.change(func() {
		if l.cutToServer || l.cutToClient {
			l.healed = time.Now()
		}
		l.cutToServer, l.cutToClient, l.refuses, l.slowedFor = false, false, false, 0
	})
}

// lastHeal returns the end of the last cut.
func (l *Link) lastHeal() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.healed
}

// Refuse refuses new connections.
func (l *Link) Refuse() { l.change(func() { l.refuses = true }) }

// Slow adds d to the delay of each write.
func (l *Link) Slow(d time.Duration) { l.change(func() { l.slowedFor = d }) }

func (l *Link) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// Reset breaks all connections. Bytes in flight are lost.
func (l *Link) Reset() {
	l.mu.Lock()
	conns := l.conns
	l.conns = map[int]pair{}
	l.mu.Unlock()
	for _, p := range conns {
		p.client.reset()
		p.server.reset()
	}
}
