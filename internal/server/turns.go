package server

import (
	"context"
	"net/http"
	"sync"

	"golang.org/x/sync/semaphore"
)

const (
	// maxAnsweringBytes bounds the bodies that are being answered, and maxPeerAnsweringBytes those of one IP
	// address. Otherwise hundreds of busy connections would delay all other calls. Hundreds of small requests fit
	// the bounds.
	maxAnsweringBytes, maxPeerAnsweringBytes = 64 << 10, 32 << 10

	// requestBytes is added to each body, because a request without a body costs time too.
	requestBytes = 256
)

// turns lets each request wait until the bounds have room for its body.
type turns struct {
	all *semaphore.Weighted // bytes that are being answered

	mu    sync.Mutex // guards peers
	peers map[string]*peerTurns
}

// peerTurns are the turns of one IP address.
type peerTurns struct {
	bytes    *semaphore.Weighted
	requests int // requests that wait or are being answered
}

func newTurns() *turns {
	return &turns{all: semaphore.NewWeighted(maxAnsweringBytes), peers: map[string]*peerTurns{}}
}

// wait waits for the turn of a request, or fails if ctx ends. The caller must call end after the answer.
func (t *turns) wait(ctx context.Context, address string, bodyBytes int) (end func(), err error) {
	n := int64(min(bodyBytes+requestBytes, maxPeerAnsweringBytes))
	p := t.join(address)
	if err := p.bytes.Acquire(ctx, n); err != nil {
		t.leave(address, p)
		return nil, err
	}
	if err := t.all.Acquire(ctx, n); err != nil {
		p.bytes.Release(n)
		t.leave(address, p)
		return nil, err
	}
	return func() {
		t.all.Release(n)
		p.bytes.Release(n)
		t.leave(address, p)
	}, nil
}

// turnWriter ends the turn of a request before it writes the answer, so a client that does not read its answers
// delays nobody.
type turnWriter struct {
	http.ResponseWriter
	endTurn func()
}

// Unwrap is for http.ResponseController.
func (w *turnWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *turnWriter) WriteHeader(code int) {
	w.endTurn()
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *turnWriter) Write(b []byte) (int, error) {
	w.endTurn()
	return w.ResponseWriter.Write(b)
}

func (t *turns) join(address string) *peerTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[address]
	if p == nil {
		p = &peerTurns{bytes: semaphore.NewWeighted(maxPeerAnsweringBytes)}
		t.peers[address] = p
	}
	p.requests++
	return p
}

func (t *turns) leave(address string, p *peerTurns) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.requests--; p.requests == 0 {
		delete(t.peers, address)
	}
}
