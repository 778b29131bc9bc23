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
	root := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{textNode("domain"), textNode(r.GetDomain())}}
	for _, d := range r.GetDescriptors() {
		if defaults := d.GetMetadata().GetFields()[XDSExtension].GetStructValue().GetFields()["defaults"]; defaults != nil {
			root.Content = append(root.Content, textNode("defaults"), yamlNode(defaults.AsInterface()))
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
	values := map[string]any{}
	if len(d.GetDescriptors()) > 0 {
		children := []any{} // empty beyond MaxDepth; readDescriptors reports the depth
		for i, child := range d.GetDescriptors() {
			if depth < MaxDepth {
				children = append(children, x.descriptor(child, x.place(pos, i, child), depth+1))
			}
		}
		values["descriptors"] = children
	}
	setUnlessZero(values, "key", d.GetKey())
	setUnlessZero(values, "value", d.GetValue())
	setUnlessZero(values, "detailed_metric", d.GetDetailedMetric())
	setUnlessZero(values, "quota_mode", d.GetQuotaMode())
	setUnlessZero(values, "shadow_mode", d.GetShadowMode())
	limit := xdsPolicy(d.GetRateLimit())
	if limit != nil {
		values["rate_limit"] = limit
	}
	if d.GetMetadata() != nil {
		x.addMetadata(values, limit, d.GetMetadata().AsMap(), pos, depth)
	}
	return yamlNode(values)
}

// addMetadata adds metadata to values, the fields of a descriptor. limit has the fields of its limit, or is nil.
func (x *xdsReader) addMetadata(values, limit, metadata map[string]any, pos *place, depth int) {
	extension, hasExtension := metadata[XDSExtension]
	extensionFields, isMapping := extension.(map[string]any)
	if hasExtension && !isMapping {
		x.d.errorf(nil, pos, "%s in metadata: want a mapping with fields of a descriptor", XDSExtension)
	}
	if delete(metadata, XDSExtension); len(metadata) > 0 {
		values["metadata"] = metadata
	}
	if depth == 1 {
		delete(extensionFields, "defaults") // the root has the defaults
	}
	if limitFields, ok := extensionFields["rate_limit"].(map[string]any); ok && limit != nil {
		maps.Copy(limit, limitFields)
		delete(extensionFields, "rate_limit")
	}
	maps.Copy(values, extensionFields)
}

// xdsPolicy returns the fields that the same limit has in a limits file, or nil without a limit.
func xdsPolicy(p *confv3.RateLimitPolicy) map[string]any {
	if p == nil {
		return nil
	}
	values := map[string]any{"requests_per_unit": float64(p.GetRequestsPerUnit())}
	setUnlessZero(values, "name", p.GetName())
	setUnlessZero(values, "unlimited", p.GetUnlimited())
	if p.GetUnit() != confv3.RateLimitUnit_UNKNOWN {
		values["unit"] = strings.ToLower(p.GetUnit().String())
	}
	if len(p.GetReplaces()) > 0 {
		var replaces []any
		for _, r := range p.GetReplaces() {
			replaces = append(replaces, map[string]any{"name": r.GetName()})
		}
		values["replaces"] = replaces
	}
	return values
}

// setUnlessZero sets a field, unless value is zero. A message of proto3 has the zero value for an absent field.
func setUnlessZero[T comparable](values map[string]any, name string, value T) {
	if value != *new(T) {
		values[name] = value
	}
}

func textNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: text}
}

// yamlNode returns the node of v, without lines. v is a node, or a value that encoding/json has decoded.
func yamlNode(v any) *yaml.Node {
	switch v := v.(type) {
	case *yaml.Node:
		return v
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode, Content: make([]*yaml.Node, 0, 2*len(v))}
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
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(int64(v), 10)}
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
