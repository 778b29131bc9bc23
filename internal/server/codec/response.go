package codec

import (
	"unicode/utf8"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// encodedResponse is the memory of a response. A response of one status with a short name needs no other allocation.
type encodedResponse struct {
	bytes   [80]byte
	buffer  mem.SliceBuffer
	buffers [1]mem.Buffer
}

// statusBytes is the usual size of a status.
const statusBytes = 40

// encodeResponse encodes r. If r has a rare field, it returns false. The service never sets unknown fields. rls.proto has
// the numbers of the fields.
func encodeResponse(r *rlsv3.RateLimitResponse) (mem.BufferSlice, bool) {
	if r == nil || hasRareField(r) {
		return nil, false
	}
	e := new(encodedResponse)
	b := e.bytes[:0]
	if size := statusBytes * len(r.Statuses); size > len(e.bytes) {
		b = make([]byte, 0, size)
	}
	b = appendNumber(b, 1, uint64(r.OverallCode))
	for _, status := range r.Statuses {
		var ok bool
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		start := len(b)
		if b, ok = appendStatus(append(b, 0), status); !ok || !setLength(b, start) {
			return nil, false
		}
	}
	e.buffer = b
	e.buffers[0] = &e.buffer
	return e.buffers[:], true
}

func hasRareField(r *rlsv3.RateLimitResponse) bool {
	hasHeaders := len(r.ResponseHeadersToAdd) > 0 || len(r.RequestHeadersToAdd) > 0
	return hasHeaders || len(r.RawBody) > 0 || r.DynamicMetadata != nil || r.Quota != nil
}

func appendStatus(b []byte, s *rlsv3.RateLimitResponse_DescriptorStatus) ([]byte, bool) {
	if s == nil || s.Quota != nil {
		return nil, false
	}
	b = appendNumber(b, 1, uint64(s.Code))
	if l := s.CurrentLimit; l != nil {
		if l.UnitMultiplier != nil || !utf8.ValidString(l.Name) {
			return nil, false
		}
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		start := len(b)
		b = appendNumber(append(b, 0), 1, uint64(l.RequestsPerUnit))
		b = appendNumber(b, 2, uint64(l.Unit))
		if l.Name != "" {
			b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), l.Name)
		}
		if !setLength(b, start) {
			return nil, false
		}
	}
	b = appendNumber(b, 3, uint64(s.LimitRemaining))
	if d := s.DurationUntilReset; d != nil {
		b = protowire.AppendTag(b, 4, protowire.BytesType)
		start := len(b)
		b = appendNumber(append(b, 0), 1, uint64(d.Seconds))
		b = appendNumber(b, 2, uint64(d.Nanos))
		if !setLength(b, start) {
			return nil, false
		}
	}
	return b, true
}

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// setLength sets b[start] to the number of bytes after b[start]. It returns false if the number needs more than one byte.
func setLength(b []byte, start int) bool {
	n := len(b) - start - 1
	b[start] = byte(n)
	return n < 0x80
}
