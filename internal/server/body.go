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
	"golang.org/x/time/rate"
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
	maxBytes     int64         // the size of the largest accepted body
	largeBodies  chan struct{} // has an element for each large body that the server is reading
	answerBounds *answerBounds
	calls        *callCounter
	newContext   func(*http.Request) context.Context // may be nil
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
	case b.largeBodies <- struct{}{}:
		defer func() { <-b.largeBodies }()
	default:
		return nil, errManyLargeBodies
	}
	lastBytes, err := io.ReadAll(reader)
	return append(body, lastBytes...), err
}

func (b *bodyReader) handler(next BodyHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.calls.beginCall()
		defer b.calls.endCall()
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
		release, err := b.answerBounds.acquire(r.Context(), address, len(body))
		if err != nil {
			return // the client has gone
		}
		answer := &releasingWriter{ResponseWriter: w, release: sync.OnceFunc(release)}
		defer answer.release()
		if b.newContext != nil {
			r = r.WithContext(b.newContext(r))
		}
		next.ServeBody(answer, r, body)
	})
}

const (
	// maxAnsweringBytes bounds the total size of the bodies of the requests that the server answers at the same time.
	// maxPeerAnsweringBytes is the bound for one IP address. Without these bounds, hundreds of busy connections would
	// delay all other calls.
	maxAnsweringBytes, maxPeerAnsweringBytes = 64 << 10, 32 << 10

	// requestOverhead is added to the size of each body, because a request with an empty body costs time too.
	requestOverhead = 256
)

// answerBounds makes each request wait until maxAnsweringBytes and maxPeerAnsweringBytes allow its body.
type answerBounds struct {
	bytes *semaphore.Weighted // the bytes of all requests that the server is answering

	mu    sync.Mutex // guards peers
	peers map[string]*peerBound
}

type peerBound struct {
	bytes    *semaphore.Weighted // the bytes of the requests that the server is answering
	requests int                 // the number of open streams, of requests that wait, and of requests that the server is answering

	streamBytes *rate.Limiter // bounds the bytes of the messages of all streams
}

func newAnswerBounds() *answerBounds {
	return &answerBounds{bytes: semaphore.NewWeighted(maxAnsweringBytes), peers: map[string]*peerBound{}}
}

// acquire waits until the server may answer a request. If ctx ends first, acquire returns an error. The caller must call
// release after the answer.
func (a *answerBounds) acquire(ctx context.Context, address string, bodyBytes int) (release func(), err error) {
	n := int64(min(bodyBytes+requestOverhead, maxPeerAnsweringBytes))
	peer := a.addRequest(address)
	if err := peer.bytes.Acquire(ctx, n); err != nil {
		a.removeRequest(address, peer)
		return nil, err
	}
	if err := a.bytes.Acquire(ctx, n); err != nil {
		peer.bytes.Release(n)
		a.removeRequest(address, peer)
		return nil, err
	}
	return func() {
		a.bytes.Release(n)
		peer.bytes.Release(n)
		a.removeRequest(address, peer)
	}, nil
}

// releasingWriter calls release before it writes the answer, so that a client that does not read delays no other client.
type releasingWriter struct {
	http.ResponseWriter
	release func()
}

// Unwrap gives http.ResponseController the wrapped writer.
func (w *releasingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *releasingWriter) WriteHeader(code int) {
	w.release()
	w.ResponseWriter.WriteHeader(code)
}

func (w *releasingWriter) Write(b []byte) (int, error) {
	w.release()
	return w.ResponseWriter.Write(b)
}

func (a *answerBounds) addRequest(address string) *peerBound {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[address]
	if p == nil {
		p = &peerBound{bytes: semaphore.NewWeighted(maxPeerAnsweringBytes), streamBytes: rate.NewLimiter(maxPeerStreamBytes, maxPeerStreamBytes)}
		a.peers[address] = p
	}
	p.requests++
	return p
}

func (a *answerBounds) removeRequest(address string, p *peerBound) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.requests--; p.requests == 0 {
		delete(a.peers, address)
	}
}
