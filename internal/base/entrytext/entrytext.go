// Package entrytext parses and formats the text of a descriptor, such as `tenant=acme,path=/orders`.
package entrytext

import (
	"errors"
	"fmt"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// Parse splits a text such as key=value,key=value into entries. The text has \, for a comma, \= for a = in a key, and \\
// for a \. hasValue[i] reports whether entry i has a =.
func Parse(text string) (entries []*ratelimitv3.RateLimitDescriptor_Entry, hasValue []bool, err error) {
	var part []byte // the start of the key or value that is being read
	e := &ratelimitv3.RateLimitDescriptor_Entry{}
	isInValue, isEscaped := false, false
	endEntry := func() {
		if isInValue {
			e.Value = string(part)
		} else {
			e.Key = string(part)
		}
		entries, hasValue = append(entries, e), append(hasValue, isInValue)
		part, e, isInValue = part[:0], &ratelimitv3.RateLimitDescriptor_Entry{}, false
	}
	for _, c := range []byte(text) {
		switch {
		case isEscaped:
			part, isEscaped = append(part, c), false
		case c == '\\':
			isEscaped = true
		case c == ',':
			endEntry()
		case c == '=' && !isInValue:
			e.Key, part, isInValue = string(part), part[:0], true
		default:
			part = append(part, c)
		}
	}
	endEntry()
	if isEscaped {
		return nil, nil, errors.New(`no character follows the last \; write \\ for a \`)
	}
	return entries, hasValue, nil
}

// ParseRequest parses a descriptor of a request. Each entry must have a key and a =.
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
		b.WriteString(keyEscaper.Replace(e.GetKey()) + "=" + valueEscaper.Replace(e.GetValue()))
	}
	return b.String()
}

var (
	keyEscaper   = strings.NewReplacer(`\`, `\\`, ",", `\,`, "=", `\=`)
	valueEscaper = strings.NewReplacer(`\`, `\\`, ",", `\,`)
)
