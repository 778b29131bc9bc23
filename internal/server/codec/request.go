package codec

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// A tag is the number of a field, and whether its value is bytes or a number. Tags of less than
// 16 fields have one byte.
const (
	numberField = 0
	bytesField  = 2

	domainTag      = 1<<3 | bytesField
	descriptorsTag = 2<<3 | bytesField
	addendTag      = 3<<3 | numberField

	entriesTag = 1<<3 | bytesField // of a descriptor

	keyTag   = 1<<3 | bytesField // of an entry
	valueTag = 2<<3 | bytesField
)

// decodeRequest decodes data into an empty request, whose strings are parts of data. It returns
// false if data has a rare field or is invalid. The request is then undefined.
func decodeRequest(data string, request *rlsv3.RateLimitRequest) bool {
	descriptors, entries, ok := countParts(data)
	if !ok {
		return false
	}
	memory := newRequestMemory(descriptors, entries)
	request.Descriptors = memory.descriptorPointers
	for data != "" {
		tag := data[0]
		data = data[1:]
		if tag == addendTag {
			var addend uint64
			if addend, data, ok = cutNumber(data); !ok {
				return false
			}
			request.HitsAddend = uint32(addend & math.MaxUint32)
			continue
		}
		var value string
		if value, data, ok = cutBytes(data); !ok {
			return false
		}
		switch tag {
		case domainTag:
			if request.Domain = value; !utf8.ValidString(value) {
				return false
			}
		case descriptorsTag:
			if !memory.decodeDescriptor(value) {
				return false
			}
		}
	}
	return true
}

// countDescriptors decodes the domain of a request that has more than maxDescriptors descriptors,
// and adds as many empty descriptors. It returns false for all other requests, and if data is invalid
// or has a rare field.
func countDescriptors(data string, maxDescriptors int, request *rlsv3.RateLimitRequest) (ok bool) {
	descriptors, domain := 0, ""
	for data != "" {
		tag := data[0]
		data = data[1:]
		switch tag {
		case addendTag:
			_, data, ok = cutNumber(data)
		case domainTag:
			domain, data, ok = cutBytes(data)
			ok = ok && utf8.ValidString(domain)
		case descriptorsTag:
			_, data, ok = cutBytes(data)
			descriptors++
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	if descriptors <= maxDescriptors {
		return false
	}
	request.Domain = strings.Clone(domain)
	request.Descriptors = slices.Repeat([]*ratelimitv3.RateLimitDescriptor{{}}, descriptors)
	return true
}

// countParts returns the numbers of descriptors and of all their entries. ok is false if data has
// a rare field.
func countParts(data string) (descriptors, entries int, ok bool) {
	for data != "" {
		tag := data[0]
		data = data[1:]
		switch tag {
		case addendTag:
			if _, data, ok = cutNumber(data); !ok {
				return 0, 0, false
			}
		case domainTag, descriptorsTag:
			var value string
			if value, data, ok = cutBytes(data); !ok {
				return 0, 0, false
			}
			if tag == domainTag {
				continue
			}
			descriptors++
			for value != "" {
				if value[0] != entriesTag {
					return 0, 0, false
				}
				if _, value, ok = cutBytes(value[1:]); !ok {
					return 0, 0, false
				}
				entries++
			}
		default:
			return 0, 0, false
		}
	}
	return descriptors, entries, true
}

// requestMemory is the memory of the parts of a request. Parts are cut off when they are used.
type requestMemory struct {
	descriptors        []ratelimitv3.RateLimitDescriptor
	descriptorPointers []*ratelimitv3.RateLimitDescriptor // to descriptors
	entries            []ratelimitv3.RateLimitDescriptor_Entry
	entryPointers      []*ratelimitv3.RateLimitDescriptor_Entry // to entries
}

// Usual requests have one descriptor of two entries, or up to four such descriptors.
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

// newRequestMemory returns the memory of a request. A usual request needs one allocation.
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

// decodeDescriptor decodes data into the next descriptor.
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

// decodeEntry decodes data into e.
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

// cutBytes cuts a length and that many bytes off the start of data.
func cutBytes(data string) (value, rest string, ok bool) {
	length, rest, ok := cutNumber(data)
	if !ok || length > uint64(len(rest)) {
		return "", "", false
	}
	return rest[:length], rest[length:], true
}

// cutNumber cuts a number off the start of data. Each of its bytes has seven bits, least first.
func cutNumber(data string) (n uint64, rest string, ok bool) {
	for i := range min(len(data), 5) { // lengths and hits_addend have at most 35 bits
		n |= uint64(data[i]&0x7f) << (7 * i)
		if data[i] < 0x80 {
			return n, data[i+1:], true
		}
	}
	return 0, "", false
}
