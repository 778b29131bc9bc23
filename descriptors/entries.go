package descriptors

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// ParseEntries splits a descriptor of the command line into entries: key=value,key=value. A
// \ before a comma, a = in a key or a \ removes its meaning. hasValue reports for each entry whether it has a =.
func ParseEntries(text string) (entries []*ratelimitv3.RateLimitDescriptor_Entry, hasValue []bool, err error) {
	var part []byte // the key or value so far
	e := &ratelimitv3.RateLimitDescriptor_Entry{}
	inValue, escaped := false, false
	end := func() {
		if inValue {
			e.Value = string(part)
		} else {
			e.Key = string(part)
		}
		entries, hasValue = append(entries, e), append(hasValue, inValue)
		part, e, inValue = part[:0], &ratelimitv3.RateLimitDescriptor_Entry{}, false
	}
	for _, c := range []byte(text) {
		switch {
		case escaped:
			part, escaped = append(part, c), false
		case c == '\\':
			escaped = true
		case c == ',':
			end()
		case c == '=' && !inValue:
			e.Key, part, inValue = string(part), part[:0], true
		default:
			part = append(part, c)
		}
	}
	end()
	if escaped {
		return nil, nil, errors.New(`no character follows the last \; write \\ for a \`)
	}
	return entries, hasValue, nil
}

// ParseRequestEntries parses a descriptor of a request. Each entry must have a key and a =,
// and its value can be empty.
func ParseRequestEntries(text string) ([]*ratelimitv3.RateLimitDescriptor_Entry, error) {
	entries, hasValue, err := ParseEntries(text)
	if i := slices.Index(hasValue, false); err == nil && i >= 0 {
		err = fmt.Errorf("entry %d has no =; write each entry as KEY=VALUE, and a comma in a value as '\\,'", i+1)
	}
	if err == nil {
		err = Target{Domain: "any", Entries: entries}.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("%q is not a descriptor: %w", text, err)
	}
	return entries, nil
}

// FormatEntries returns entries in the form that ParseEntries parses.
func FormatEntries(entries []*ratelimitv3.RateLimitDescriptor_Entry) string {
	var b strings.Builder
	for i, e := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(escapeKey.Replace(e.GetKey()) + "=" + escapeValue.Replace(e.GetValue()))
	}
	return b.String()
}

var (
	escapeKey   = strings.NewReplacer(`\`, `\\`, ",", `\,`, "=", `\=`)
	escapeValue = strings.NewReplacer(`\`, `\\`, ",", `\,`)
)
