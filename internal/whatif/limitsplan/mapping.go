package limitsplan

import (
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// MaxMappingBytes is the maximum size of a mapping file.
const MaxMappingBytes = 1 << 16

// Mapping says how a line of a JSON access log becomes a rate-limit request.
type Mapping struct {
	Time   string     // the field with the start of the request: RFC 3339, or seconds or milliseconds since 1970
	Domain string     // the domain of all requests
	Denied *Condition // the condition that a denied request meets; without Denied, all requests count as admitted
	Hits   string     // the field with the number of hits; without Hits, each request has one hit

	// Descriptors are the descriptors of each request. If a line has no value for a field of a
	// descriptor, the request does not have this descriptor, as in Envoy.
	Descriptors [][]EntryMapping
}

// Condition holds if the field has the value Equals.
type Condition struct{ Field, Equals string }

// EntryMapping is an entry of a descriptor: a key, and a field of the line or a fixed value.
type EntryMapping struct{ Key, Field, Value string }

var (
	mappingFields = []fields.Field{
		{Name: "time", Kind: fields.NonEmpty, Remedy: "want the field with the start of the request, such as start_time"},
		{Name: "domain", Kind: fields.NonEmpty, Remedy: "want the domain of the limits file"},
		{Name: "denied", Kind: fields.Object},
		{Name: "hits", Kind: fields.NonEmpty},
		{Name: "descriptors", Kind: fields.List, Min: 1, Remedy: "want a list of descriptors, each a list of entries"},
	}
	conditionFields = []fields.Field{
		{Name: "field", Kind: fields.NonEmpty, Remedy: "want the field that shows a denial, such as response_code"},
		{Name: "equals", Kind: fields.NonEmpty, Remedy: `want the value of the field in a denial, such as "429"`},
	}
	entryFields = []fields.Field{
		{Name: "key", Kind: fields.NonEmpty, Remedy: "want the key of the entry"},
		{Name: "field", Kind: fields.NonEmpty},
		{Name: "value", Kind: fields.NonEmpty},
	}
)

// ParseMapping reads a mapping file. The error is fields.Problems.
func ParseMapping(name string, data []byte) (*Mapping, error) {
	m := new(Mapping)
	f := fields.File{Name: name, Data: data, MaxBytes: MaxMappingBytes, ItemsName: "fields", EmptyProblem: "time, domain and descriptors are missing"}
	err := f.Read(func(r *fields.Reader, root *yaml.Node) {
		values := r.Object(root, "mapping file", mappingFields)
		m.Time, m.Domain, m.Hits = values["time"].Text, values["domain"].Text, values["hits"].Text
		if denied := values["denied"]; denied.IsPresent() {
			c := r.Object(denied.Node, "denied", conditionFields)
			m.Denied = &Condition{c["field"].Text, c["equals"].Text}
		}
		for _, entries := range r.Items(values["descriptors"]) {
			var descriptor []EntryMapping
			for _, n := range r.List(entries, fields.Field{Name: "descriptor", Kind: fields.List, Min: 1, Want: "a list of entries"}) {
				e := r.Object(n, "entry", entryFields)
				if e["field"].IsPresent() == e["value"].IsPresent() && e != nil {
					r.Errorf(n, "entry: want either field or value")
				}
				descriptor = append(descriptor, EntryMapping{e["key"].Text, e["field"].Text, e["value"].Text})
			}
			m.Descriptors = append(m.Descriptors, descriptor)
		}
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// fields returns the paths of all fields that m reads, except for Time, because each line must have a time.
func (m *Mapping) fields() []string {
	var paths []string
	add := func(path string) {
		if path != "" && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	for _, entries := range m.Descriptors {
		for _, e := range entries {
			add(e.Field)
		}
	}
	add(m.Hits)
	if m.Denied != nil {
		add(m.Denied.Field)
	}
	return paths
}
