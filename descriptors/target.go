package descriptors

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Target names a descriptor by the keys and values of a limits file, or of a request.
type Target struct {
	Domain  string
	Entries []*ratelimitv3.RateLimitDescriptor_Entry
}

// ParseTarget parses what String returns. It rejects any other text, so each target has
// one text only.
func ParseTarget(text string) (Target, error) {
	parts := strings.Split(text, "|")
	if len(parts) < 2 {
		return Target{}, fmt.Errorf("target: got %s, want DOMAIN|KEY=VALUE|KEY=VALUE…", cmp.Or(limitsfile.Printable(text), `""`))
	}
	if len(parts)-1 > limitsfile.MaxDepth {
		return Target{}, fmt.Errorf("target has %d entries; maximum is %d", len(parts)-1, limitsfile.MaxDepth)
	}
	var t Target
	domain, ok := unescape(parts[0])
	t.Domain = domain
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		e := &ratelimitv3.RateLimitDescriptor_Entry{}
		var keyOK, valueOK bool
		e.Key, keyOK = unescape(key)
		e.Value, valueOK = unescape(value)
		ok = ok && keyOK && valueOK
		t.Entries = append(t.Entries, e)
	}
	if !ok {
		return Target{}, fmt.Errorf("target %s: want two hexadecimal digits in capitals, of UTF-8 text, after each %%; write %%25 for a %%", limitsfile.Printable(text))
	}
	if err := t.Check(); err != nil {
		return Target{}, err
	}
	if want := t.String(); want != text {
		return Target{}, fmt.Errorf("target: got %s, want %s", limitsfile.Printable(text), want)
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

// String returns domain|key=value|key. Each part is escaped as in the names of counters,
// except that a * is not.
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

// unescape reverses appendEscaped. It reports false if the result is not UTF-8.
func unescape(s string) (string, bool) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "%")
		b.WriteString(before)
		if !found {
			return b.String(), utf8.ValidString(b.String())
		}
		if len(after) < 2 {
			return "", false
		}
		hi, lo := unhex(after[0]), unhex(after[1])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		s = after[2:]
	}
}

func unhex(c byte) int { return strings.IndexByte("0123456789ABCDEF", c) }
