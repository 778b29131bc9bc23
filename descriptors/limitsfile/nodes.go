package limitsfile

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// The functions below make YAML nodes like the parser, but without lines.

// yamlMapping returns a mapping of names and values, which alternate in pairs. It leaves
// out empty values. In proto3, empty means absent.
func yamlMapping(pairs ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i < len(pairs); i += 2 {
		v, isNode := pairs[i+1].(*yaml.Node)
		if !isNode && pairs[i+1] != "" && pairs[i+1] != false {
			v = yamlNode(pairs[i+1])
		}
		if v != nil {
			yamlAdd(n, pairs[i].(string), v)
		}
	}
	return n
}

// yamlAdd adds a field to mapping n.
func yamlAdd(n *yaml.Node, name string, v *yaml.Node) {
	n.Content = append(n.Content, yamlNode(name), v)
}

// yamlNode returns the node of v, a value as encoding/json decodes it.
func yamlNode(v any) *yaml.Node {
	switch v := v.(type) {
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			yamlAdd(n, name, yamlNode(v[name]))
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range v {
			n.Content = append(n.Content, yamlNode(item))
		}
		return n
	case string:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: v}
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v)}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<63 {
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(int64(v), 10)}
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: strconv.FormatFloat(v, 'g', -1, 64)}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}
