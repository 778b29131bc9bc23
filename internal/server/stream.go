package server

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/server/codec"
)

// maxPeerStreamBytes bounds the bytes that the streams of one IP address receive in a second.
const maxPeerStreamBytes = 4 << 20

// A decoded message takes at most decodedGrowth times the memory of the encoded message.
const decodedGrowth = 16

// boundedStream is a stream of a client that sends many messages. A message waits for answerBounds before the stream decodes
// the message, and counts until the handler receives the next message. So a client with many streams delays mostly itself.
type boundedStream struct {
	grpc.ServerStream
	bounds       *answerBounds
	address      string
	peer         *peerBound
	messageBytes int    // the size of the last message
	endMessage   func() // makes answerBounds no longer count the last message
}

func newBoundedStream(s grpc.ServerStream, bounds *answerBounds) *boundedStream {
	b := &boundedStream{ServerStream: s, bounds: bounds, endMessage: func() {}}
	if p, ok := peer.FromContext(s.Context()); ok && p.Addr != nil {
		b.address, _, _ = net.SplitHostPort(p.Addr.String())
	}
	b.peer = bounds.addRequest(b.address)
	context.AfterFunc(s.Context(), func() { bounds.removeRequest(b.address, b.peer) })
	return b
}

// RecvMsg implements grpc.ServerStream.
func (s *boundedStream) RecvMsg(message any) error {
	s.endMessage()
	s.endMessage = func() {}
	if err := s.peer.streamBytes.WaitN(s.Context(), min(s.messageBytes, maxPeerStreamBytes)); err != nil {
		return status.FromContextError(err).Err()
	}
	return s.ServerStream.RecvMsg(&codec.StreamMessage{Message: message, BeforeDecode: func(bytes int) error {
		s.messageBytes = bytes
		release, err := s.bounds.acquire(s.Context(), s.address, bytes*decodedGrowth)
		if err != nil {
			return err
		}
		release = sync.OnceFunc(release)
		stop := context.AfterFunc(s.Context(), release) // the handler need not receive a further message
		s.endMessage = func() {
			stop()
			release()
		}
		return nil
	}})
}
