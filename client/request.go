package client

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/limit"
)

// Entry is a key and a value of a Descriptor.
type Entry struct{ Key, Value string }

// Descriptor is a list of entries, such as tenant=acme, that a limit can count. The order of the
// entries follows the levels of the limits file.
type Descriptor []Entry

// NewDescriptor returns a Descriptor with one entry.
func NewDescriptor(key, value string) Descriptor { return Descriptor{{key, value}} }

// Add returns a copy of d with one more entry.
func (d Descriptor) Add(key, value string) Descriptor {
	return append(d[:len(d):len(d)], Entry{key, value})
}

// ParseDescriptor parses a text such as "tenant=acme,path=/orders". Write \, for a comma in an entry,
// \= for a = in a key, and \\ for a backslash. String returns such a text.
func ParseDescriptor(text string) (Descriptor, error) {
	entries, err := entrytext.ParseRequest(text)
	if err != nil {
		return nil, err
	}
	var d Descriptor
	for _, e := range entries {
		d = append(d, Entry{e.Key, e.Value})
	}
	return d, nil
}

// String returns the text that ParseDescriptor parses.
func (d Descriptor) String() string { return entrytext.Format(d.entries()) }

func (d Descriptor) entries() []*ratelimitv3.RateLimitDescriptor_Entry {
	entries := make([]*ratelimitv3.RateLimitDescriptor_Entry, len(d))
	for i, e := range d {
		entries[i] = &ratelimitv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value}
	}
	return entries
}

// Request asks for N permits of each descriptor.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	N           int // 0 means 1
}

func (r *Request) n() int { return cmp.Or(r.N, 1) }

// noPermits is the Request.N of a caller that asks for 0 permits, because an N of 0 means 1.
const noPermits = math.MinInt

// zeroToNoPermits returns n, or noPermits for 0. check rejects noPermits.
func zeroToNoPermits(n int) int { return cmp.Or(n, noPermits) }

func (r *Request) check() error {
	if r.Domain == "" {
		return errors.New("domain: got none, want the domain of a limits file")
	}
	if len(r.Descriptors) == 0 {
		return errors.New("descriptors: got none, want at least 1")
	}
	for i, d := range r.Descriptors {
		if len(d) == 0 {
			return fmt.Errorf("descriptor %d: got no entries, want at least 1", i+1)
		}
		for j, e := range d {
			if e.Key == "" {
				return fmt.Errorf("descriptor %d: entry %d: got no key, want a key of the limits file", i+1, j+1)
			}
		}
	}
	switch {
	case r.N == noPermits:
		return fmt.Errorf("permits: got 0, want 1 to %d", int64(limit.MaxHits))
	case r.N < 0 || int64(r.N) > limit.MaxHits:
		return fmt.Errorf("permits: got %d, want 1 to %d", r.N, int64(limit.MaxHits))
	}
	return nil
}

func (r *Request) key() string {
	key := fmt.Appendf(nil, "%d:%s", len(r.Domain), r.Domain)
	for _, d := range r.Descriptors {
		text := d.String()
		key = fmt.Appendf(key, "|%d:%s", len(text), text)
	}
	return string(key)
}

// proto returns r as a message of Envoy, with n hits. n is negative for a refund.
func (r *Request) proto(n int64) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: r.Domain}
	for _, d := range r.Descriptors {
		descriptor := &ratelimitv3.RateLimitDescriptor{Entries: d.entries()}
		if n != 1 {
			descriptor.HitsAddend = wrapperspb.UInt64(uint64(max(n, -n)))
			descriptor.IsNegativeHits = n < 0
		}
		req.Descriptors = append(req.Descriptors, descriptor)
	}
	return req
}
