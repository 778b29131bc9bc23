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

// BodyHandler answers requests of the HTTP listener after the server has read their bodies.
type BodyHandler interface {
	// ServeBody answers r. body is the whole body of r.
	ServeBody(w http.ResponseWriter, r *http.Request, body []byte)

	// Refuse answers a request that the server refuses.
	Refuse(w http.ResponseWriter, code int, reason string)
}

const (
	// maxSmallBody is the size of the largest small body. The server reads any number of small bodies at once.
	maxSmallBody = 4 << 10

	// maxLargeBodyBytes bounds the memory of the large bodies that the server reads at the same time.
	maxLargeBodyBytes = 16 << 20
)

// bodyReader reads the bodies for all handlers. The handlers share the bounds of the bodyReader.
type bodyReader struct {
	maxBytes   int64         // the size of the largest accepted body
	largeSlots chan struct{} // has an element for each large body that the server is reading
	turns      *turns
	inflight   *inflight
	newContext func(*http.Request) context.Context // may be nil
}

func newBodyReader(o *Options, inflight *inflight) *bodyReader {
	return &bodyReader{
		maxBytes:   int64(o.GRPC.MaxMessageBytes),
		largeSlots: make(chan struct{}, max(maxLargeBodyBytes/o.GRPC.MaxMessageBytes, 1)),
		turns:      newTurns(),
		inflight:   inflight,
		newContext: o.HTTPContext,
	}
}

var errManyLargeBodies = errors.New("too many large bodies at once; try again")

func (b *bodyReader) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > b.maxBytes {
		w.Header().Set("Connection", "close") // otherwise net/http reads the whole body
		return nil, &http.MaxBytesError{Limit: b.maxBytes}
	}
	reader := http.MaxBytesReader(w, r.Body, b.maxBytes)
	body, err := io.ReadAll(io.LimitReader(reader, maxSmallBody))
	if err != nil || len(body) < maxSmallBody {
		return body, err
	}
	select {
	case b.largeSlots <- struct{}{}:
		defer func() { <-b.largeSlots }()
	default:
		return nil, errManyLargeBodies
	}
	rest, err := io.ReadAll(reader)
	return append(body, rest...), err
}

func (b *bodyReader) handler(next BodyHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.inflight.beginCall()
		defer b.inflight.endCall()
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
		if b.newContext != nil {
			r = r.WithContext(b.newContext(r))
		}
		next.ServeBody(answer, r, body)
	})
}

const (
	// maxAnsweringBytes bounds the bodies of the requests that the server answers at the same time.
	// maxPeerAnsweringBytes bounds the bodies of one IP address. Without these bounds, hundreds of busy connections
	// would delay all other calls.
	maxAnsweringBytes, maxPeerAnsweringBytes = 64 << 10, 32 << 10

	// requestOverhead is the number of bytes that each request adds to its body, because an empty body costs time too.
	requestOverhead = 256
)

// turns makes each request wait until the bounds have room for its body.
type turns struct {
	bytes *semaphore.Weighted // the bytes of all requests in their turn

	mu    sync.Mutex // guards peers
	peers map[string]*peerTurns
}

// peerTurns are the turns of one IP address.
type peerTurns struct {
	bytes    *semaphore.Weighted // the bytes of the requests in their turn
	requests int                 // the number of requests that wait or are in their turn
}

func newTurns() *turns {
	return &turns{bytes: semaphore.NewWeighted(maxAnsweringBytes), peers: map[string]*peerTurns{}}
}

// wait waits for the turn of a request. If ctx ends first, wait returns an error. The caller must call end after the
// answer.
func (t *turns) wait(ctx context.Context, address string, bodyBytes int) (end func(), err error) {
	n := int64(min(bodyBytes+requestOverhead, maxPeerAnsweringBytes))
	p := t.join(address)
	if err := p.bytes.Acquire(ctx, n); err != nil {
		t.leave(address, p)
		return nil, err
	}
	if err := t.bytes.Acquire(ctx, n); err != nil {
		p.bytes.Release(n)
		t.leave(address, p)
		return nil, err
	}
	return func() {
		t.bytes.Release(n)
		p.bytes.Release(n)
		t.leave(address, p)
	}, nil
}

// turnWriter ends the turn of a request before it writes the answer. So a client that does not read delays nobody.
type turnWriter struct {
	http.ResponseWriter
	endTurn func()
}

// Unwrap gives http.ResponseController the wrapped writer.
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

// join counts one more request of address, and returns the turns of this address.
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

// leave removes a request that join has counted.
func (t *turns) leave(address string, p *peerTurns) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.requests--; p.requests == 0 {
		delete(t.peers, address)
	}
}
