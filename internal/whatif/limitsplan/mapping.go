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
	mapping := new(Mapping)
	file := fields.File{Name: name, Data: data, MaxBytes: MaxMappingBytes, ItemsName: "fields", EmptyProblem: "time, domain and descriptors are missing"}
	err := file.Read(func(reader *fields.Reader, root *yaml.Node) {
		values := reader.Object(root, "mapping file", mappingFields)
		mapping.Time, mapping.Domain, mapping.Hits = values["time"].Text, values["domain"].Text, values["hits"].Text
		if deniedField := values["denied"]; deniedField.IsPresent() {
			conditionValues := reader.Object(deniedField.Node, "denied", conditionFields)
			mapping.Denied = &Condition{conditionValues["field"].Text, conditionValues["equals"].Text}
		}
		for _, entries := range reader.Items(values["descriptors"]) {
			var descriptor []EntryMapping
			for _, entryNode := range reader.List(entries, fields.Field{Name: "descriptor", Kind: fields.List, Min: 1, Want: "a list of entries"}) {
				entryValues := reader.Object(entryNode, "entry", entryFields)
				if entryValues["field"].IsPresent() == entryValues["value"].IsPresent() && entryValues != nil {
					reader.Errorf(entryNode, "entry: want either field or value")
				}
				descriptor = append(descriptor, EntryMapping{entryValues["key"].Text, entryValues["field"].Text, entryValues["value"].Text})
			}
			mapping.Descriptors = append(mapping.Descriptors, descriptor)
		}
	})
	if err != nil {
		return nil, err
	}
	return mapping, nil
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
