package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"golang.org/x/sync/semaphore"
)

// BodyHandler answers requests of the HTTP listener, whose bodies the server has read.
type BodyHandler interface {
	// ServeBody answers a request with this body.
	ServeBody(w http.ResponseWriter, r *http.Request, body []byte)

	// Refuse answers a request that the server refuses.
	Refuse(w http.ResponseWriter, code int, reason string)
}

const (
	// smallBody is the size up to which a body needs no slot.
	smallBody = 4 << 10

	// maxLargeBodyBytes bounds the memory of all larger bodies that are being read.
	maxLargeBodyBytes = 16 << 20
)

// bodyReader reads the bodies of all handlers, which share its bounds.
type bodyReader struct {
	maxBytes   int64
	largeSlots chan struct{} // has an element for each large body that is being read
	turns      *turns
	inflight   *inflight
	context    func(context.Context, http.Header) context.Context // may be nil
}

func newBodyReader(o *Options, calls *inflight) *bodyReader {
	return &bodyReader{
		maxBytes:   int64(o.GRPC.MaxMessageBytes),
		largeSlots: make(chan struct{}, max(maxLargeBodyBytes/o.GRPC.MaxMessageBytes, 1)),
		turns:      newTurns(),
		inflight:   calls,
		context:    o.HTTPContext,
	}
}

var errManyLargeBodies = errors.New("too many large bodies at once; try again")

func (b *bodyReader) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > b.maxBytes {
		w.Header().Set("Connection", "close") // else net/http reads the body to its end
		return nil, &http.MaxBytesError{Limit: b.maxBytes}
	}
	rest := http.MaxBytesReader(w, r.Body, b.maxBytes)
	body, err := io.ReadAll(io.LimitReader(rest, smallBody))
	if err != nil || len(body) < smallBody {
		return body, err
	}
	select {
	case b.largeSlots <- struct{}{}:
		defer func() { <-b.largeSlots }()
	default:
		return nil, errManyLargeBodies
	}
	more, err := io.ReadAll(rest)
	return append(body, more...), err
}

func (b *bodyReader) handler(next BodyHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.inflight.begin()
		defer b.inflight.end()
		body, err := b.read(w, r)
		if err != nil {
			code := http.StatusBadRequest
			if _, isTooLarge := errors.AsType[*http.MaxBytesError](err); isTooLarge {
				code, err = http.StatusRequestEntityTooLarge, fmt.Errorf("body exceeds %d bytes", b.maxBytes)
			} else if errors.Is(err, errManyLargeBodies) {
				code = http.StatusServiceUnavailable
			}
			next.Refuse(w, code, err.Error())
			return
		}
		address, _, _ := net.SplitHostPort(r.RemoteAddr)
		endTurn, err := b.turns.wait(r.Context(), address, len(body))
		if err != nil {
			return // the client has gone
		}
		answer := &turnWriter{ResponseWriter: w, endTurn: sync.OnceFunc(endTurn)}
		defer answer.endTurn()
		if b.context != nil {
			r = r.WithContext(b.context(r.Context(), r.Header))
		}
		next.ServeBody(answer, r, body)
	})
}

const (
	// maxAnsweringBytes bounds the bodies that are being answered, and maxPeerAnsweringBytes those of one IP
	// address. Otherwise hundreds of busy connections would delay all other calls.
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

// turnWriter ends a turn before it writes, so a client that does not read its answers delays nobody.
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
