package codec

import (
	"math"
	"unicode/utf8"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// A tag has the number of a field and the type of its value: bytes or a number.
const (
	numberType = 0
	bytesType  = 2

	domainTag      = 1<<3 | bytesType // a tag of a request
	descriptorsTag = 2<<3 | bytesType
	addendTag      = 3<<3 | numberType

	usagesTag = 2<<3 | bytesType // a tag of a report of quotas

	entriesTag = 1<<3 | bytesType // a tag of a descriptor

	keyTag   = 1<<3 | bytesType // a tag of an entry
	valueTag = 2<<3 | bytesType
)

// decodeRequest decodes data into request, which must be empty. The strings of request are parts of data. If data is
// invalid or has a rare field, decodeRequest returns false, and the content of request is undefined.
func decodeRequest(data string, request *rlsv3.RateLimitRequest) bool {
	parts, ok := countParts(data)
	if !ok || !utf8.ValidString(parts.domain) {
		return false
	}
	request.Domain = parts.domain
	memory := newRequestMemory(parts.descriptors, parts.entries)
	request.Descriptors = memory.descriptorPointers
	for data != "" {
		var f field
		f, data, _ = cutField(data)
		switch f.tag {
		case addendTag:
			request.HitsAddend = uint32(f.number & math.MaxUint32)
		case descriptorsTag:
			if !memory.decodeDescriptor(f.value) {
				return false
			}
		}
	}
	return true
}

type requestParts struct {
	domain               string
	descriptors, entries int
}

// countParts returns the parts of the request in data. ok is false if data is invalid or has a rare field.
func countParts(data string) (p requestParts, ok bool) {
	for data != "" {
		var f field
		if f, data, ok = cutField(data); !ok {
			return p, false
		}
		switch f.tag {
		case domainTag:
			p.domain = f.value
		case descriptorsTag:
			p.descriptors++
			for f.value != "" {
				if f.value[0] != entriesTag {
					return p, false
				}
				if _, f.value, ok = cutBytes(f.value[1:]); !ok {
					return p, false
				}
				p.entries++
			}
		}
	}
	return p, true
}

// countPartsOfLargeRequest is countParts for a request that may have rare fields. ok is false if data is invalid.
func countPartsOfLargeRequest(data []byte) (p requestParts, ok bool) {
	ok = forEachBytesField(data, func(tag byte, value []byte) {
		switch tag {
		case domainTag:
			p.domain = string(value)
		case descriptorsTag:
			p.descriptors++
			forEachBytesField(value, func(tag byte, _ []byte) {
				if tag == entriesTag {
					p.entries++
				}
			})
		}
	})
	return p, ok && utf8.ValidString(p.domain)
}

// forEachBytesField calls f for each field with bytes and a tag of one byte. ok is false if data is invalid.
func forEachBytesField(data []byte, f func(tag byte, value []byte)) (ok bool) {
	for len(data) > 0 {
		number, wireType, tagSize := protowire.ConsumeTag(data)
		valueSize := protowire.ConsumeFieldValue(number, wireType, data[max(tagSize, 0):])
		if tagSize < 0 || valueSize < 0 {
			return false
		}
		if wireType == protowire.BytesType && tagSize == 1 {
			value, _ := protowire.ConsumeBytes(data[tagSize:])
			f(data[0], value)
		}
		data = data[tagSize+valueSize:]
	}
	return true
}

type field struct {
	tag    byte
	value  string // the value of a field with bytes
	number uint64 // the value of a field with addendTag
}

// cutField cuts a field off the start of data. ok is false if the field is invalid or rare.
func cutField(data string) (f field, suffix string, ok bool) {
	f.tag = data[0]
	switch f.tag {
	case addendTag:
		f.number, suffix, ok = cutNumber(data[1:])
	case domainTag, descriptorsTag:
		f.value, suffix, ok = cutBytes(data[1:])
	}
	return f, suffix, ok
}

// requestMemory is the unused memory for the parts of a request. decodeDescriptor cuts off the memory that it uses.
type requestMemory struct {
	descriptors        []ratelimitv3.RateLimitDescriptor
	descriptorPointers []*ratelimitv3.RateLimitDescriptor // pointers to descriptors
	entries            []ratelimitv3.RateLimitDescriptor_Entry
	entryPointers      []*ratelimitv3.RateLimitDescriptor_Entry // pointers to entries
}

// Most requests fit into smallRequest or mediumRequest.
type (
	smallRequest struct {
		descriptors        [1]ratelimitv3.RateLimitDescriptor
		descriptorPointers [1]*ratelimitv3.RateLimitDescriptor
		entries            [2]ratelimitv3.RateLimitDescriptor_Entry
		entryPointers      [2]*ratelimitv3.RateLimitDescriptor_Entry
	}
	mediumRequest struct {
		descriptors        [4]ratelimitv3.RateLimitDescriptor
		descriptorPointers [4]*ratelimitv3.RateLimitDescriptor
		entries            [8]ratelimitv3.RateLimitDescriptor_Entry
		entryPointers      [8]*ratelimitv3.RateLimitDescriptor_Entry
	}
)

// newRequestMemory returns the memory of a request. A small or medium request needs one allocation.
func newRequestMemory(descriptors, entries int) (m requestMemory) {
	switch {
	case descriptors <= 1 && entries <= 2:
		s := new(smallRequest)
		m = requestMemory{s.descriptors[:descriptors], s.descriptorPointers[:descriptors], s.entries[:entries], s.entryPointers[:entries]}
	case descriptors <= 4 && entries <= 8:
		s := new(mediumRequest)
		m = requestMemory{s.descriptors[:descriptors], s.descriptorPointers[:descriptors], s.entries[:entries], s.entryPointers[:entries]}
	default:
		m = requestMemory{
			make([]ratelimitv3.RateLimitDescriptor, descriptors), make([]*ratelimitv3.RateLimitDescriptor, descriptors),
			make([]ratelimitv3.RateLimitDescriptor_Entry, entries), make([]*ratelimitv3.RateLimitDescriptor_Entry, entries),
		}
	}
	for i := range m.descriptors {
		m.descriptorPointers[i] = &m.descriptors[i]
	}
	for i := range m.entries {
		m.entryPointers[i] = &m.entries[i]
	}
	return m
}

// decodeDescriptor decodes data into the first unused descriptor. ok is false if data is invalid or has a rare field.
func (m *requestMemory) decodeDescriptor(data string) (ok bool) {
	n := 0
	for ; data != ""; n++ {
		var entry string
		if entry, data, ok = cutBytes(data[1:]); !ok || !decodeEntry(entry, &m.entries[n]) {
			return false
		}
	}
	if n > 0 {
		m.descriptors[0].Entries = m.entryPointers[:n:n]
	}
	m.descriptors, m.entries, m.entryPointers = m.descriptors[1:], m.entries[n:], m.entryPointers[n:]
	return true
}

func decodeEntry(data string, e *ratelimitv3.RateLimitDescriptor_Entry) (ok bool) {
	for data != "" {
		tag := data[0]
		var value string
		if value, data, ok = cutBytes(data[1:]); !ok || !utf8.ValidString(value) {
			return false
		}
		switch tag {
		case keyTag:
			e.Key = value
		case valueTag:
			e.Value = value
		default:
			return false
		}
	}
	return true
}

// cutBytes cuts a length, and a value of this length, off the start of data.
func cutBytes(data string) (value, suffix string, ok bool) {
	length, suffix, ok := cutNumber(data)
	if !ok || length > uint64(len(suffix)) {
		return "", "", false
	}
	return suffix[:length], suffix[length:], true
}

// cutNumber cuts a varint off the start of data. Each byte has seven bits of the number, the lowest bits first. The
// highest bit of a byte is set if another byte follows.
func cutNumber(data string) (n uint64, suffix string, ok bool) {
	for i := range min(len(data), 5) { // lengths and hits_addend have at most 35 bits
		n |= uint64(data[i]&0x7f) << (7 * i)
		if data[i] < 0x80 {
			return n, data[i+1:], true
		}
	}
	return 0, "", false
}
