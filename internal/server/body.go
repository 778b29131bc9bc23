package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
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

// read returns the body of r.
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

// handler returns a handler that reads the body for next, and waits for the turn of the request.
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
