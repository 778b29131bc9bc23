package main

import (
	"fmt"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
)

// descriptorHelp describes the descriptors of the command line.
const descriptorHelp = "A descriptor is one or more entries KEY=VALUE, separated by commas. Write \\, for a comma,\n" +
	"\\= for a = in a key, and \\\\ for a \\. Quote the argument, because shells remove a \\."

// parseTarget parses a descriptor of limits. A key without = matches any value.
func parseTarget(domain, text string) (descriptors.Target, error) {
	entries, hasValue, err := entrytext.Parse(text)
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
	entries, err := entrytext.ParseRequest(text)
	if err != nil {
		return descriptors.Target{}, err
	}
	return newTarget(domain, text, entries, nil)
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
