package limitsplan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/internal/boundedyaml"
)

// MaxMappingBytes bounds a mapping file.
const MaxMappingBytes = 1 << 16

// Mapping says how a line of a JSON access log becomes a rate-limit request.
type Mapping struct {
	// Time is the field with the start of the request: RFC 3339, or seconds or milliseconds
	// since 1970.
	Time string `yaml:"time"`

	// Domain is the domain of all requests.
	Domain string `yaml:"domain"`

	// Denied is the field that shows a denial, and its value. Without Denied, all requests
	// count as admitted.
	Denied *Condition `yaml:"denied"`

	// Hits is the field with the number of hits. Without Hits, each request has one hit.
	Hits string `yaml:"hits"`

	// Descriptors are the descriptors of each request. A descriptor is left out if a field of
	// it is missing, as Envoy does.
	Descriptors [][]EntryMapping `yaml:"descriptors"`
}

// Condition holds if a field has the value.
type Condition struct {
	Field  string `yaml:"field"`
	Equals string `yaml:"equals"`
}

// EntryMapping is an entry of a descriptor: a key, and a field of the line or a fixed value.
type EntryMapping struct {
	Key   string `yaml:"key"`
	Field string `yaml:"field"`
	Value string `yaml:"value"`
}

// typeName matches the Go type in an error of the YAML decoder.
var typeName = regexp.MustCompile(` (?:in type|into) limitsplan\.\w+`)

// ParseMapping reads a mapping file.
func ParseMapping(name string, data []byte) (*Mapping, error) {
	if len(data) > MaxMappingBytes {
		return nil, fmt.Errorf("%s: got %d bytes, want at most %d", name, len(data), MaxMappingBytes)
	}
	_, err := boundedyaml.Parse(data, boundedyaml.Bounds{})
	if problem, ok := errors.AsType[*boundedyaml.Problem](err); ok {
		return nil, fmt.Errorf("%s:%d:%d: %s", name, problem.Line, problem.Column, problem.Reason)
	}
	m := new(Mapping)
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	switch err := d.Decode(m); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: file is empty: want time, domain and descriptors", name)
	case err != nil:
		text := strings.TrimPrefix(typeName.ReplaceAllString(err.Error(), ""), "yaml: ")
		return nil, fmt.Errorf("%s: %s", name, text)
	}
	return m, m.check(name)
}

// check returns all mistakes of m.
func (m *Mapping) check(name string) error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
	}
	if m.Time == "" {
		add("time is missing; want the field with the start of the request, such as start_time")
	}
	if m.Domain == "" {
		add("domain is missing; want the domain of the limits file")
	}
	if m.Denied != nil && (m.Denied.Field == "" || m.Denied.Equals == "") {
		add(`denied: want field and equals, such as {field: response_code, equals: "429"}`)
	}
	if len(m.Descriptors) == 0 {
		add("descriptors is missing; want a list of descriptors, each a list of entries")
	}
	for i, entries := range m.Descriptors {
		if len(entries) == 0 {
			add("descriptors[%d]: got no entry, want at least one", i)
		}
		for j, e := range entries {
			if e.Key == "" || (e.Field == "") == (e.Value == "") {
				add("descriptors[%d][%d]: want key, and either field or value", i, j)
			}
		}
	}
	return errors.Join(errs...)
}
