package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
)

// descriptorHelp describes the descriptors of the command line.
const descriptorHelp = "A descriptor is one or more entries KEY=VALUE, separated by commas. Write \\, for a comma,\n" +
	"\\= for a = in a key, and \\\\ for a \\. Quote the argument, because shells remove a \\."

// parseTarget parses a descriptor of limits. A key without = matches any value.
func parseTarget(domain, text string) (descriptors.Target, error) {
	entries, hasValue, err := parseEntries(text)
	for i, e := range entries {
		// An empty value is most likely an empty shell variable. It must not become an
		// override for all values.
		if err == nil && hasValue[i] && e.Key != "" && e.Value == "" {
			err = fmt.Errorf("the value of %s is empty; write %s without = for any value", printable(e.Key), printable(e.Key))
		}
	}
	return newTarget(domain, text, entries, err)
}

// parseRequest parses a descriptor of a request. Each entry must have a value, which can be
// empty.
func parseRequest(domain, text string) (descriptors.Target, error) {
	entries, hasValue, err := parseEntries(text)
	if i := slices.Index(hasValue, false); err == nil && i >= 0 {
		err = fmt.Errorf("entry %d has no =; write each entry as KEY=VALUE, and a comma in a value as '\\,'", i+1)
	}
	return newTarget(domain, text, entries, err)
}

// newTarget returns a target, or an error that names text.
func newTarget(domain, text string, entries []*ratelimitv3.RateLimitDescriptor_Entry, err error) (descriptors.Target, error) {
	t := descriptors.Target{Domain: domain, Entries: entries}
	if err == nil {
		err = t.Check()
	}
	if err != nil {
		return t, fmt.Errorf("%q is not a descriptor: %w", text, err)
	}
	return t, nil
}

// parseEntries splits text into entries. hasValue reports for each entry whether it has a =.
func parseEntries(text string) (entries []*ratelimitv3.RateLimitDescriptor_Entry, hasValue []bool, err error) {
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

// formatDescriptor returns a descriptor in the form that parseEntries parses.
func formatDescriptor(d *ratelimitv3.RateLimitDescriptor) string {
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
