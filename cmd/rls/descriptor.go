package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
)

// descriptorHelp says how descriptors of the command line are read.
const descriptorHelp = "A descriptor is KEY=VALUE, more entries after commas; \\ takes the character after it as\n" +
	"it is: \\, for a comma and \\= for a = in a key, \\\\ for a \\ (in quotes, as shells take a \\)."

// readTarget reads a descriptor of limits, as descriptorHelp tells. A key alone
// stands for any value.
func readTarget(domain, text string) (descriptors.Target, error) {
	entries, valued, err := readEntries(text)
	for i, e := range entries {
		// Most likely a shell's variable that is empty: not to be for all values.
		if err == nil && valued[i] && e.Key != "" && e.Value == "" {
			err = fmt.Errorf("the value of %s is empty; %s without = stands for any value", printable(e.Key), printable(e.Key))
		}
	}
	return asTarget(domain, text, entries, err)
}

// readRequest reads a descriptor of a request, each entry of which has a value,
// though it may be empty.
func readRequest(domain, text string) (descriptors.Target, error) {
	entries, valued, err := readEntries(text)
	if bare := slices.Index(valued, false); err == nil && bare >= 0 {
		err = fmt.Errorf("entry %d has no =; each is KEY=VALUE, and a comma in a value is written '\\,'", bare+1)
	}
	return asTarget(domain, text, entries, err)
}

func asTarget(domain, text string, entries []*ratelimitv3.RateLimitDescriptor_Entry, err error) (descriptors.Target, error) {
	t := descriptors.Target{Domain: domain, Entries: entries}
	if err == nil {
		err = t.Check()
	}
	if err != nil {
		return t, fmt.Errorf("%q is not a descriptor: %w", text, err)
	}
	return t, nil
}

// readEntries splits text into entries, and tells of each whether it has a =.
func readEntries(text string) (entries []*ratelimitv3.RateLimitDescriptor_Entry, valued []bool, err error) {
	var part []byte // of the entry, read so far
	e := &ratelimitv3.RateLimitDescriptor_Entry{}
	inValue, escaped := false, false
	end := func() {
		if inValue {
			e.Value = string(part)
		} else {
			e.Key = string(part)
		}
		entries, valued = append(entries, e), append(valued, inValue)
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
		return nil, nil, errors.New(`it ends with a \ that has nothing to go with; write \\ for a \`)
	}
	return entries, valued, nil
}

// asWritten is a descriptor as readEntries reads it.
func asWritten(d *ratelimitv3.RateLimitDescriptor) string {
	var b strings.Builder
	for i, e := range d.Entries {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(escapeKey.Replace(e.Key) + "=" + escapeValue.Replace(e.Value))
	}
	return b.String()
}

var (
	escapeKey   = strings.NewReplacer(`\`, `\\`, ",", `\,`, "=", `\=`)
	escapeValue = strings.NewReplacer(`\`, `\\`, ",", `\,`)
)
