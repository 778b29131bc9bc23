package quota

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"unique"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
)

// bucketKey has a domain and a bucket id. Many Envoys report the same id, so they share the memory of its key.
type bucketKey struct {
	// texts has the domain and then each name with its value, sorted by name. The length of a text stands before it.
	texts unique.Handle[string]
}

// newBucketKey returns false if the texts have more than maxIDBytes.
func newBucketKey(domain string, id map[string]string) (_ bucketKey, ok bool) {
	texts, size := appendText(nil, domain), len(domain)
	for _, name := range slices.Sorted(maps.Keys(id)) {
		if size += len(name) + len(id[name]); size > maxIDBytes {
			return bucketKey{}, false
		}
		texts = appendText(appendText(texts, name), id[name])
	}
	return bucketKey{unique.Make(string(texts))}, true
}

func appendText(texts []byte, text string) []byte {
	return append(binary.AppendUvarint(texts, uint64(len(text))), text...)
}

// bytes returns the length of the key.
func (k bucketKey) bytes() int { return len(k.texts.Value()) }

// decode returns the domain, and the entries of the id in the order of their names.
func (k bucketKey) decode() (domain string, entries []*ratelimitv3.RateLimitDescriptor_Entry) {
	rest := k.texts.Value()
	next := func() string {
		length, size := binary.Uvarint([]byte(rest[:min(len(rest), binary.MaxVarintLen64)]))
		text := rest[size : size+int(length)]
		rest = rest[size+int(length):]
		return text
	}
	domain = next()
	for rest != "" {
		entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: next(), Value: next()})
	}
	return domain, entries
}

// id returns the bucket id.
func (k bucketKey) id() *rlqsv3.BucketId {
	_, entries := k.decode()
	id := make(map[string]string, len(entries))
	for _, e := range entries {
		id[e.GetKey()] = e.GetValue()
	}
	return &rlqsv3.BucketId{Bucket: id}
}

// sortEntries moves the entries with the keys of order to the front.
func sortEntries(entries []*ratelimitv3.RateLimitDescriptor_Entry, order []string) {
	position := func(e *ratelimitv3.RateLimitDescriptor_Entry) int {
		if i := slices.Index(order, e.GetKey()); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(entries, func(a, b *ratelimitv3.RateLimitDescriptor_Entry) int { return cmp.Compare(position(a), position(b)) })
}
