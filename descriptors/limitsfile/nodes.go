package limitsfile

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// The functions below make YAML nodes like the parser, but without lines.

// yamlMapping returns a mapping of names and values, which alternate in pairs. It leaves
// out empty values. In proto3, empty means absent.
func yamlMapping(pairs ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i < len(pairs); i += 2 {
		var node *yaml.Node
		switch v := pairs[i+1].(type) {
		case string:
			node = yamlString(v)
		case bool:
			node = yamlFlag(v)
		case *yaml.Node:
			node = v
		}
		if node != nil && pairs[i+1] != "" && pairs[i+1] != false {
			yamlAdd(n, pairs[i].(string), node)
		}
	}
	return n
}

// yamlAdd adds a field to mapping n.
func yamlAdd(n *yaml.Node, name string, v *yaml.Node) {
	n.Content = append(n.Content, yamlString(name), v)
}

func yamlString(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: s}
}

func yamlFlag(b bool) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(b)}
}

func yamlNumber(f float64) *yaml.Node {
	if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(int64(f), 10)}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: strconv.FormatFloat(f, 'g', -1, 64)}
}

func yamlStruct(s *structpb.Struct) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, name := range slices.Sorted(maps.Keys(s.GetFields())) {
		yamlAdd(n, name, yamlValue(s.GetFields()[name]))
	}
	return n
}

func yamlValue(v *structpb.Value) *yaml.Node {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		return yamlStruct(k.StructValue)
	case *structpb.Value_ListValue:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range k.ListValue.GetValues() {
			n.Content = append(n.Content, yamlValue(item))
		}
		return n
	case *structpb.Value_StringValue:
		return yamlString(k.StringValue)
	case *structpb.Value_BoolValue:
		return yamlFlag(k.BoolValue)
	case *structpb.Value_NumberValue:
		return yamlNumber(k.NumberValue)
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}
