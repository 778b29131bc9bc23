package quota

import (
	"cmp"
	"maps"
	"slices"
	"unique"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"
)

// bucketKey has a domain and a bucket id. Many Envoys report the same id, so they share the memory of its key.
type bucketKey struct{ unique.Handle[domainAndID] }

type domainAndID struct {
	domain string
	id     string // the BucketId in Protocol Buffers, with sorted names
}

// newBucketKey returns false if the texts have more than maxIDBytes.
func newBucketKey(domain string, id map[string]string) (_ bucketKey, ok bool) {
	size := len(domain)
	for key, value := range id {
		size += len(key) + len(value)
	}
	if size > maxIDBytes {
		return bucketKey{}, false
	}
	encodedID, err := proto.MarshalOptions{Deterministic: true}.Marshal(&rlqsv3.BucketId{Bucket: id})
	return bucketKey{unique.Make(domainAndID{domain, string(encodedID)})}, err == nil
}

func (k bucketKey) domain() string { return k.Value().domain }

func (k bucketKey) bytes() int { return len(k.Value().domain) + len(k.Value().id) }

func (k bucketKey) id() *rlqsv3.BucketId {
	id := &rlqsv3.BucketId{}
	_ = proto.Unmarshal([]byte(k.Value().id), id) // newBucketKey has encoded it
	return id
}

// entries returns the entries of the id: first the entries with the keys of order, then the others sorted by key.
func (k bucketKey) entries(order []string) []*ratelimitv3.RateLimitDescriptor_Entry {
	id := k.id().GetBucket()
	position := func(key string) int {
		if i := slices.Index(order, key); i >= 0 {
			return i
		}
		return len(order)
	}
	keys := slices.SortedFunc(maps.Keys(id), func(a, b string) int { return cmp.Or(cmp.Compare(position(a), position(b)), cmp.Compare(a, b)) })
	var entries []*ratelimitv3.RateLimitDescriptor_Entry
	for _, key := range keys {
		entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: id[key]})
	}
	return entries
}
