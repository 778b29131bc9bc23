package descriptors

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Target is the path to a descriptor, with the keys and values of a limits file or of a request.
type Target struct {
	Domain  string
	Entries []*ratelimitv3.RateLimitDescriptor_Entry
}

// ParseTarget parses a text that String returns. It rejects other forms, such as an escaped *, so that each target has only
// one text.
func ParseTarget(text string) (Target, error) {
	parts := strings.Split(text, "|")
	if len(parts) < 2 {
		return Target{}, fmt.Errorf("target: got %s, want DOMAIN|KEY=VALUE|KEY=VALUE…", cmp.Or(fields.Printable(text), `""`))
	}
	if len(parts)-1 > limitsfile.MaxDepth {
		return Target{}, fmt.Errorf("target has %d entries; maximum is %d", len(parts)-1, limitsfile.MaxDepth)
	}
	isValid := true
	unescape := func(part string) string {
		s, err := url.PathUnescape(part)
		isValid = isValid && err == nil && utf8.ValidString(s)
		return s
	}
	t := Target{Domain: unescape(parts[0])}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		t.Entries = append(t.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: unescape(key), Value: unescape(value)})
	}
	if !isValid {
		return Target{}, fmt.Errorf("target %s: want UTF-8 text, and two hexadecimal digits in capitals after each %%; write %%25 for a %%", fields.Printable(text))
	}
	if err := t.Check(); err != nil {
		return Target{}, err
	}
	if canonicalText := t.String(); canonicalText != text {
		return Target{}, fmt.Errorf("target: got %s, want %s", fields.Printable(text), canonicalText)
	}
	return t, nil
}

// Check returns an error if t lacks the domain or a key.
func (t Target) Check() error {
	if t.Domain == "" {
		return errors.New("target has no domain")
	}
	if len(t.Entries) == 0 {
		return errors.New("target has no key")
	}
	for i, e := range t.Entries {
		if e.GetKey() == "" {
			return fmt.Errorf("entry %d of the target has no key", i+1)
		}
	}
	return nil
}

// Keys returns the keys of the entries.
func (t Target) Keys() []string {
	keys := make([]string, len(t.Entries))
	for i, e := range t.Entries {
		keys[i] = e.GetKey()
	}
	return keys
}

// ParseRequestTarget parses a target with the entries of a request: domain|key=value|key=. A key with an empty value can
// have a =, which ParseTarget rejects. hasAllValues reports whether each key has a =.
func ParseRequestTarget(text string) (t Target, hasAllValues bool, err error) {
	parts := strings.Split(text, "|")
	hasAllValues = true
	for i, part := range parts[1:] {
		hasAllValues = hasAllValues && strings.Contains(part, "=")
		if key, isEmpty := strings.CutSuffix(part, "="); isEmpty && !strings.Contains(key, "=") {
			parts[i+1] = key
		}
	}
	t, err = ParseTarget(strings.Join(parts, "|"))
	return t, hasAllValues, err
}

// RequestString returns domain|key=value|key=. Each key has a =.
func (t Target) RequestString() string {
	parts := strings.Split(t.String(), "|")
	for i, e := range t.Entries {
		if e.GetValue() == "" {
			parts[i+1] += "="
		}
	}
	return strings.Join(parts, "|")
}

// String returns domain|key=value|key. It escapes the same bytes as names of counters, except a *.
func (t Target) String() string {
	b := appendEscaped(nil, t.Domain, &escapedInPattern)
	for _, e := range t.Entries {
		b = appendEscaped(append(b, '|'), e.GetKey(), &escapedInPattern)
		if e.GetValue() != "" {
			b = appendEscaped(append(b, '='), e.GetValue(), &escapedInPattern)
		}
	}
	return string(b)
}

// CounterPrefix describes the counters of all request descriptors that start with the same entries.
type CounterPrefix struct {
	Domain string

	// Entries are the first entries of the request descriptors. If Entries is empty, the prefix describes all counters of
	// the domain.
	Entries []*ratelimitv3.RateLimitDescriptor_Entry

	// HasAnyValue means that the last entry stands for all values of its key. The value of the entry is then empty.
	HasAnyValue bool
}

// ParseCounterPrefix parses DOMAIN or DOMAIN|KEY=VALUE|KEY. A last key without a = means all values of the key.
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
			p.HasAnyValue = true
		}
		if strings.Contains(part, "*") {
			return CounterPrefix{}, fmt.Errorf("prefix: got a * in %s, which has no meaning there; leave the value out for all values, and write %%2A for the character", fields.Printable(part))
		}
	}
	return p, nil
}

// KeyStart returns the start of the keys of the counters. If endsAnywhere is true, any text can follow start in a key, as
// after "shop|tenant=". Otherwise the key ends after start, or a | and more entries follow.
func (p CounterPrefix) KeyStart() (start string, endsAnywhere bool) {
	rule := &Rule{}
	start = string(rule.AppendKey(nil, p.Domain, p.Entries))
	if len(p.Entries) == 0 {
		start += "|"
	}
	return start, p.HasAnyValue || len(p.Entries) == 0
}

// String returns the text that ParseCounterPrefix parses.
func (p CounterPrefix) String() string {
	start, _ := p.KeyStart()
	if len(p.Entries) == 0 {
		return strings.TrimSuffix(start, "|")
	}
	if p.HasAnyValue {
		return strings.TrimSuffix(start, "=")
	}
	return start
}
