// Package entrytext reads and writes the text of a descriptor, such as `tenant=acme,path=/orders`.
package entrytext

import (
	"errors"
	"fmt"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// Parse splits a descriptor of the command line into entries: key=value,key=value. A \ before a comma, a = in a key
// or a \ removes its meaning. hasValue reports for each entry whether it has a =.
func Parse(text string) (entries []*ratelimitv3.RateLimitDescriptor_Entry, hasValue []bool, err error) {
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

// ParseRequest parses a descriptor of a request, whose entries must have a key and a =.
func ParseRequest(text string) ([]*ratelimitv3.RateLimitDescriptor_Entry, error) {
	entries, hasValue, err := Parse(text)
	for i := 0; err == nil && i < len(entries); i++ {
		switch {
		case !hasValue[i]:
			err = fmt.Errorf("entry %d has no =; write each entry as KEY=VALUE, and a comma in a value as '\\,'", i+1)
		case entries[i].Key == "":
			err = fmt.Errorf("entry %d has no key", i+1)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%q is not a descriptor: %w", text, err)
	}
	return entries, nil
}

// Format returns entries in the form that Parse parses.
func Format(entries []*ratelimitv3.RateLimitDescriptor_Entry) string {
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
