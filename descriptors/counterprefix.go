package descriptors

import (
	"errors"
	"fmt"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// CounterPrefix names all counters of requests whose descriptors start with some entries.
type CounterPrefix struct {
	Domain string

	// Entries are the first entries of the descriptors. Without entries, the prefix names all
	// counters of the domain.
	Entries []*ratelimitv3.RateLimitDescriptor_Entry

	// AnyValue reports that the last entry stands for all values of its key.
	AnyValue bool
}

// ParseCounterPrefix parses DOMAIN, DOMAIN|KEY=VALUE|KEY=VALUE or DOMAIN|KEY=VALUE|KEY. A last key
// without a = stands for all its values.
func ParseCounterPrefix(text string) (CounterPrefix, error) {
	domain, path, hasEntries := strings.Cut(text, "|")
	if !hasEntries {
		if domain == "" {
			return CounterPrefix{}, errors.New("prefix is empty; want DOMAIN, or DOMAIN|KEY=VALUE|KEY=VALUE…")
		}
		t, err := ParseTarget(domain + "|any")
		return CounterPrefix{Domain: t.Domain}, err
	}
	t, _, err := ParseRequestTarget(text)
	if err != nil {
		return CounterPrefix{}, err
	}
	p := CounterPrefix{Domain: t.Domain, Entries: t.Entries}
	parts := strings.Split(path, "|")
	for i, part := range parts {
		if !strings.Contains(part, "=") {
			if i < len(parts)-1 {
				return CounterPrefix{}, fmt.Errorf("prefix: got the key %s without a value, want KEY=VALUE before the last key", fields.Printable(part))
			}
			p.AnyValue = true
		}
		if strings.Contains(part, "*") {
			return CounterPrefix{}, fmt.Errorf("prefix: got a * in %s, which has no meaning there; leave the value out for all values, and write %%2A for the character", fields.Printable(part))
		}
	}
	return p, nil
}

// KeyStart returns the start of the keys of the counters. endsAnywhere reports whether any text
// may follow. Otherwise a key ends there, or goes on with a | and further entries.
func (p CounterPrefix) KeyStart() (start string, endsAnywhere bool) {
	rule := &Rule{}
	start = string(rule.AppendKey(nil, p.Domain, p.Entries))
	if len(p.Entries) == 0 {
		start += "|"
	}
	return start, p.AnyValue || len(p.Entries) == 0
}

// String returns the text that ParseCounterPrefix parses.
func (p CounterPrefix) String() string {
	start, _ := p.KeyStart()
	if len(p.Entries) == 0 {
		return strings.TrimSuffix(start, "|")
	}
	if p.AnyValue {
		return strings.TrimSuffix(start, "=")
	}
	return start
}
