package admission

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// appendData appends a DATA frame of stream 1 with this content.
func appendData(b, content []byte, flags uint8) []byte {
	b = appendFrame(b, frame{length: len(content), kind: frameData, flags: flags, streamID: 1})
	copy(b[len(b)-len(content):], content)
	return b
}

// message returns a message of gRPC with size bytes after its prefix. No byte of the message is zero.
func message(size int) []byte {
	m := binary.BigEndian.AppendUint32([]byte{1}, uint32(size))
	for range size {
		m = append(m, 7)
	}
	return m
}

// sendPartOfAnswer sends a part of the answer of stream 1.
func (c *client) sendPartOfAnswer() {
	data := appendData(nil, message(1), 0)
	readDone := make(chan struct{})
	go func() {
		_, _ = c.Read(make([]byte, len(data)))
		close(readDone)
	}()
	_, _ = c.server.Write(data)
	<-readDone
}

func TestStreamWithAnsweredMessagesIsNotCut(t *testing.T) {
	fixture := newGateFixture(t, Options{MaxPendingBytes: 1 << 20})
	client := fixture.connect("10.0.0.1")
	for range 1000 {
		_, err := client.exchange(appendData(nil, message(3000), 0))
		require.NoError(t, err)
		assert.EqualValues(t, 3005+frameOverhead, fixture.gate.PendingBytes())
		client.sendPartOfAnswer()
		assert.Zero(t, fixture.gate.PendingBytes())
	}
	assert.Empty(t, fixture.reasons)
	client.answer(1)
	assert.Zero(t, fixture.gate.PendingBytes())
}

func TestHalfSentMessagesStayPending(t *testing.T) {
	for name, test := range map[string]struct {
		content []byte
		flags   uint8
		want    int64 // after a part of the answer
	}{
		"a whole message":                 {message(9000), 0, 0},
		"a message without its last byte": {message(9000)[:9004], 0, 9004 + frameOverhead},
		"a part of a prefix":              {message(9000)[:4], 0, 4 + frameOverhead},
		"a message and half of the next":  {append(message(8000), message(8000)[:900]...), 0, 900 + frameOverhead},
		"an empty message":                {message(0), 0, 0},
		"a whole message with padding":    {message(9000), 8, 9005 + frameOverhead},
	} {
		t.Run(name, func(t *testing.T) {
			fixture := newGateFixture(t, Options{MaxPendingBytes: 1 << 20})
			client := fixture.connect("10.0.0.1")
			_, err := client.exchange(appendData(nil, test.content, test.flags))
			require.NoError(t, err)
			client.sendPartOfAnswer()
			assert.Equal(t, test.want, fixture.gate.PendingBytes())
			client.sendPartOfAnswer()
			assert.Equal(t, test.want, fixture.gate.PendingBytes())
			client.answer(1)
			assert.Zero(t, fixture.gate.PendingBytes())
		})
	}
}

func TestEndsOfMessagesAreFoundInAnyPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var content []byte
		lastEnd := 0
		for _, size := range rapid.SliceOfN(rapid.IntRange(0, 50), 1, 10).Draw(t, "sizes") {
			content = append(content, message(size)...)
			if lastEnd = len(content); rapid.Bool().Draw(t, "is last") {
				break
			}
		}
		content = append(content, message(50)[:rapid.IntRange(0, 54).Draw(t, "bytes of the last message")]...)
		partialBytes := len(content) - lastEnd
		s := &pendingStream{}
		frames := 0 // with a byte of the last message
		for contentLeft := content; len(contentLeft) > 0; {
			n := rapid.IntRange(1, len(contentLeft)).Draw(t, "frame")
			s.beginFrame(frame{length: n})
			for frameLeft := contentLeft[:n]; len(frameLeft) > 0; {
				piece := rapid.IntRange(1, len(frameLeft)).Draw(t, "piece")
				s.scan(frameLeft[:piece])
				frameLeft = frameLeft[piece:]
			}
			if contentLeft = contentLeft[n:]; len(contentLeft) < partialBytes {
				frames++
			}
		}
		assert.EqualValues(t, partialBytes+frames*frameOverhead, s.partialBytes)
		assert.EqualValues(t, 0, s.frameBytesLeft)
	})
}
