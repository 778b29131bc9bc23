package limitsfile

import (
	"math"
	"strconv"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// metadata reads a mapping with values of any type. It returns nil after reporting a mistake.
func (d *document) metadata(pos *place, n *yaml.Node) *structpb.Struct {
	mistakes := d.mistakes
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	d.metadataFields(s, pos, n, 0)
	if d.mistakes > mistakes {
		return nil
	}
	return s
}

func (d *document) metadataFields(s *structpb.Struct, pos *place, n *yaml.Node, depth int) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := fields.Resolve(n.Content[i]), fields.Resolve(n.Content[i+1])
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			for _, m := range d.mergeSources(pos, v) {
				if d.descend(pos, m, depth+1) {
					d.metadataFields(s, pos, m, depth+1)
				}
			}
			continue
		}
		name, ok := fields.ParseText(key)
		if key.Kind != yaml.ScalarNode || !ok {
			d.errorf(n.Content[i], pos, "key in metadata: got %s, want text", fields.Display(key))
			continue
		}
		s.Fields[name] = d.metadataValue(pos, v, depth+1)
	}
}

// descend reports whether to go on into n.
func (d *document) descend(pos *place, n *yaml.Node, depth int) bool {
	if depth > MaxDepth {
		d.errorf(n, pos, "metadata is nested more than %d deep", MaxDepth)
		return false
	}
	d.metadataValues++
	return d.visit(n) && d.checkCount(n, d.metadataValues, maxMetadata, "values in metadata")
}

// metadataValue returns n as a value, never nil, because a Struct with a nil can't be
// sent.
func (d *document) metadataValue(pos *place, n *yaml.Node, depth int) *structpb.Value {
	if !d.descend(pos, n, depth) {
		return structpb.NewNullValue()
	}
	switch n.Kind {
	case yaml.MappingNode:
		s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		d.metadataFields(s, pos, n, depth)
		return structpb.NewStructValue(s)
	case yaml.SequenceNode:
		list := &structpb.ListValue{}
		for _, item := range n.Content {
			list.Values = append(list.Values, d.metadataValue(pos, fields.Resolve(item), depth+1))
		}
		return structpb.NewListValue(list)
	}
	switch tag := fields.Tag(n); tag {
	case "!!null":
		return structpb.NewNullValue()
	case "!!bool":
		b, _ := fields.ParseBool(n.Value)
		return structpb.NewBoolValue(b)
	case "!!int", "!!float":
		if i, ok := fields.ParseInt(n.Value); ok {
			return structpb.NewNumberValue(float64(i))
		}
		// Numbers that JSON lacks (.inf, .nan) stay text.
		if f, err := strconv.ParseFloat(n.Value, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return structpb.NewNumberValue(f)
		}
	}
	text, ok := fields.ParseText(n)
	if !ok {
		d.errorf(n, pos, "metadata: got %s, want text in UTF-8", fields.Display(n))
	}
	return structpb.NewStringValue(text)
}
