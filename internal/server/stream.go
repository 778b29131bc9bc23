package server

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/seed-81f232ab/rls/internal/server/codec"
)

// decodedGrowth is how much larger than its encoding a message can be in memory, in the worst case.
const decodedGrowth = 16

// boundedStream is a stream of a client that sends many messages. A message waits for answerBounds before the stream decodes
// it, and counts there until the handler receives the next message. So a client with many streams delays mostly itself.
type boundedStream struct {
	grpc.ServerStream
	bounds     *answerBounds
	address    string
	endMessage func() // ends the count of the last message
}

func newBoundedStream(s grpc.ServerStream, bounds *answerBounds) *boundedStream {
	b := &boundedStream{ServerStream: s, bounds: bounds, endMessage: func() {}}
	if p, ok := peer.FromContext(s.Context()); ok && p.Addr != nil {
		b.address, _, _ = net.SplitHostPort(p.Addr.String())
	}
	return b
}

// RecvMsg implements grpc.ServerStream.
func (s *boundedStream) RecvMsg(message any) error {
	s.endMessage()
	s.endMessage = func() {}
	return s.ServerStream.RecvMsg(&codec.StreamMessage{Message: message, BeforeDecode: func(bytes int) error {
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
