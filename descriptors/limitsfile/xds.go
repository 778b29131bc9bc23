package limitsfile

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// XDSExtension is the key of the fields of rls in the metadata of an xDS descriptor (docs/xds.md).
const XDSExtension = "rls"

// ParseXDS reads xDS resources like limits files with the same content. The error is Problems without lines.
//
// oldSet is the last Set. If a domain has problems, the new Set keeps the domain of oldSet. If oldSet lacks the domain, or
// has it with problems, the new Set has the descriptors of the response that are without problems.
func ParseXDS(resources []*confv3.RateLimitConfig, oldSet *Set, o Options) (*Set, error) {
	r := newReader(o)
	r.isXDS = true
	for i, resource := range resources {
		d := newDocument(fields.Printable(cmp.Or(resource.GetName(), fmt.Sprintf("resource %d", i+1))), r.parseState)
		x := &xdsReader{d: d, domainPlace: &place{domain: fields.Printable(resource.GetDomain())}}
		r.openDocument(d, x.root(resource))
		d.forEachPiece = func(f func([]*yaml.Node) bool) error {
			x.eachPiece(resource.GetDescriptors(), f)
			return nil
		}
	}
	set, errs := r.read()
	if len(errs) == 0 {
		return set, nil
	}
	r.keepDomains(oldSet)
	return set, errs
}

// keepDomains replaces the domains with problems by the domains of oldSet, and removes empty domains with problems.
func (r *reader) keepDomains(oldSet *Set) {
	for _, d := range r.docs {
		if d.errorCount > 0 && d.domain != nil && r.domains[d.domain.Name] != nil {
			r.domains[d.domain.Name].hasProblems = true
		}
	}
	var oldDomains []*Domain
	if oldSet != nil {
		oldDomains = oldSet.Domains
	}
	for i, d := range r.set.Domains {
		isUsable := func(old *Domain) bool { return old.Name == d.Name && !old.hasProblems }
		if k := slices.IndexFunc(oldDomains, isUsable); d.hasProblems && k >= 0 {
			r.set.Domains[i] = oldDomains[k]
		}
	}
	isEmpty := func(d *Domain) bool { return d.hasProblems && len(d.Descriptors) == 0 }
	r.set.Domains = slices.DeleteFunc(r.set.Domains, isEmpty)
	hasNoName := func(d *document) bool { return d.domain == nil || d.domain.Name == "" }
	if slices.ContainsFunc(r.docs, hasNoName) { // a document without a name may be any domain that the response lacks
		isNamed := func(d *Domain) bool { return r.domains[d.Name] != nil }
		r.set.Domains = append(r.set.Domains, slices.DeleteFunc(slices.Clone(oldDomains), isNamed)...)
	}
}

const (
	// xdsPieceRules is the number of rules after which a piece ends. Only one piece at a time has YAML nodes in memory.
	xdsPieceRules = 400

	// maxXDSPieceRules bounds the descriptors and limits of one descriptor of a domain.
	maxXDSPieceRules = 100_000
)

type xdsReader struct {
	d           *document
	domainPlace *place // the place of the domain
}

// root converts r without its descriptors.
func (x *xdsReader) root(r *confv3.RateLimitConfig) *yaml.Node {
	root := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{keyNode("domain"), textNode(r.GetDomain())}}
	for _, d := range r.GetDescriptors() {
		if defaults := d.GetMetadata().GetFields()[XDSExtension].GetStructValue().GetFields()["defaults"]; defaults != nil {
			root.Content = append(root.Content, keyNode("defaults"), yamlNode(defaults.AsInterface()))
		}
	}
	return root
}

// eachPiece converts the descriptors of the domain piece by piece, and calls f with each piece until f returns false.
func (x *xdsReader) eachPiece(list []*confv3.RateLimitDescriptor, f func([]*yaml.Node) bool) {
	var piece []*yaml.Node
	ruleCount := 0
	for i, d := range list {
		pos := x.place(x.domainPlace, i, d)
		n := countXDSRules(d)
		if n > maxXDSPieceRules {
			x.d.errorf(nil, pos, "got more than %d descriptors and limits in one descriptor; split the descriptor", maxXDSPieceRules)
			continue
		}
		piece = append(piece, x.descriptor(d, pos, 1))
		if ruleCount += n; ruleCount >= xdsPieceRules {
			if !f(piece) {
				return
			}
			piece, ruleCount = nil, 0
		}
	}
	f(piece)
}

func (x *xdsReader) place(parent *place, i int, d *confv3.RateLimitDescriptor) *place {
	return &place{parent: parent, index: i, descriptor: &Descriptor{Key: d.GetKey(), Value: d.GetValue()}}
}

func countXDSRules(d *confv3.RateLimitDescriptor) int {
	n := 1
	if d.GetRateLimit() != nil {
		n += 1 + len(d.GetRateLimit().GetReplaces())
	}
	for _, child := range d.GetDescriptors() {
		n += countXDSRules(child)
	}
	return n
}

// descriptor returns the node that the same descriptor has in a limits file. The fields that the metadata has below
// XDSExtension override other fields.
func (x *xdsReader) descriptor(d *confv3.RateLimitDescriptor, pos *place, depth int) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Content: make([]*yaml.Node, 0, 8)}
	if len(d.GetDescriptors()) > 0 {
		children := &yaml.Node{Kind: yaml.SequenceNode} // empty beyond MaxDepth; readDescriptors reports the depth
		for i, child := range d.GetDescriptors() {
			if depth < MaxDepth {
				children.Content = append(children.Content, x.descriptor(child, x.place(pos, i, child), depth+1))
			}
		}
		addField(n, "descriptors", children)
	}
	addFlag(n, "detailed_metric", d.GetDetailedMetric())
	addText(n, "key", d.GetKey())
	limit := xdsPolicy(d.GetRateLimit())
	if limit != nil {
		addField(n, "rate_limit", limit)
	}
	addFlag(n, "quota_mode", d.GetQuotaMode())
	addFlag(n, "shadow_mode", d.GetShadowMode())
	addText(n, "value", d.GetValue())
	if d.GetMetadata() != nil {
		x.addMetadata(n, limit, d.GetMetadata().AsMap(), pos, depth)
	}
	return n
}

// addMetadata adds metadata to n, a descriptor. limit is the limit of n, or nil.
func (x *xdsReader) addMetadata(n, limit *yaml.Node, metadata map[string]any, pos *place, depth int) {
	extension, hasExtension := metadata[XDSExtension]
	fields, isMapping := extension.(map[string]any)
	if hasExtension && !isMapping {
		x.d.errorf(nil, pos, "%s in metadata: want a mapping with fields of a descriptor", XDSExtension)
	}
	if delete(metadata, XDSExtension); len(metadata) > 0 {
		addField(n, "metadata", yamlNode(metadata))
	}
	if depth == 1 {
		delete(fields, "defaults") // the root has the defaults
	}
	if limitFields, ok := fields["rate_limit"].(map[string]any); ok && limit != nil {
		setFields(limit, limitFields)
		delete(fields, "rate_limit")
	}
	setFields(n, fields)
}

// xdsPolicy returns the node that the same limit has in a limits file, or nil without a limit.
func xdsPolicy(p *confv3.RateLimitPolicy) *yaml.Node {
	if p == nil {
		return nil
	}
	n := &yaml.Node{Kind: yaml.MappingNode, Content: make([]*yaml.Node, 0, 4)}
	addText(n, "name", p.GetName())
	if len(p.GetReplaces()) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, r := range p.GetReplaces() {
			list.Content = append(list.Content, yamlNode(map[string]any{"name": r.GetName()}))
		}
		addField(n, "replaces", list)
	}
	addField(n, "requests_per_unit", intNode(int64(p.GetRequestsPerUnit())))
	if p.GetUnit() != confv3.RateLimitUnit_UNKNOWN {
		addText(n, "unit", strings.ToLower(p.GetUnit().String()))
	}
	addFlag(n, "unlimited", p.GetUnlimited())
	return n
}

func addField(n *yaml.Node, name string, value *yaml.Node) {
	n.Content = append(n.Content, keyNode(name), value)
}

// addText adds a field, unless text is empty. A message of proto3 has "" for an absent field. In the same way, addFlag adds
// no field for false.
func addText(n *yaml.Node, name, text string) {
	if text != "" {
		addField(n, name, textNode(text))
	}
}

func addFlag(n *yaml.Node, name string, flag bool) {
	if flag {
		addField(n, name, yamlNode(flag))
	}
}

// setFields sets the fields of n to the values that encoding/json has decoded.
func setFields(n *yaml.Node, values map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := yamlNode(values[name])
		i := 0
		for i < len(n.Content) && n.Content[i].Value != name {
			i += 2
		}
		if i < len(n.Content) {
			n.Content[i+1] = value
		} else {
			addField(n, name, value)
		}
	}
}

// schemaKeys has the nodes of the names of all fields. Nobody may change them, because all descriptors share them.
var schemaKeys = func() map[string]*yaml.Node {
	keys := map[string]*yaml.Node{}
	for _, f := range schema {
		keys[f.Name] = textNode(f.Name)
	}
	return keys
}()

func keyNode(name string) *yaml.Node {
	if n := schemaKeys[name]; n != nil {
		return n
	}
	return textNode(name)
}

func textNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: text}
}

func intNode(n int64) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(n, 10)}
}

// yamlNode returns the node of v, without lines. v is a value that encoding/json has decoded.
func yamlNode(v any) *yaml.Node {
	switch v := v.(type) {
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			n.Content = append(n.Content, yamlNode(name), yamlNode(v[name]))
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range v {
			n.Content = append(n.Content, yamlNode(item))
		}
		return n
	case string:
		return textNode(v)
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v)}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<63 {
			return intNode(int64(v))
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: strconv.FormatFloat(v, 'g', -1, 64)}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}

// XDSBounds counts the content of the resources of a response before they are decoded. A descriptor of two bytes
// takes 150 times as much memory after decoding.
type XDSBounds struct {
	ruleCount, metadataValueCount int
}

// maxXDSDepth bounds nested messages. MaxDepth descriptors with metadata need less depth.
const maxXDSDepth = 1000

// Add counts an encoded resource. The error names the bound that is exceeded. Add ignores an invalid resource.
func (b *XDSBounds) Add(resource []byte) error {
	return b.add(resource, (&confv3.RateLimitConfig{}).ProtoReflect().Descriptor(), 1)
}

func (b *XDSBounds) add(wire []byte, m protoreflect.MessageDescriptor, depth int) error {
	switch m.Name() {
	case "RateLimitDescriptor", "RateLimitPolicy", "RateLimitReplace":
		b.ruleCount++
	case "Value":
		b.metadataValueCount++
	}
	switch {
	case depth > maxXDSDepth:
		return fmt.Errorf("messages are nested more than %d deep", maxXDSDepth)
	case b.ruleCount > maxRules:
		return fmt.Errorf("response has more than %d descriptors and limits", maxRules)
	case b.metadataValueCount > maxMetadata:
		return fmt.Errorf("response has more than %d values in metadata", maxMetadata)
	}
	for len(wire) > 0 {
		number, kind, tagSize := protowire.ConsumeTag(wire)
		valueSize := protowire.ConsumeFieldValue(number, kind, wire[max(tagSize, 0):])
		if tagSize < 0 || valueSize < 0 {
			return nil
		}
		field := m.Fields().ByNumber(number)
		if field != nil && field.Message() != nil && kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(wire[tagSize:])
			if err := b.add(content, field.Message(), depth+1); err != nil {
				return err
			}
		}
		wire = wire[tagSize+valueSize:]
	}
	return nil
}
