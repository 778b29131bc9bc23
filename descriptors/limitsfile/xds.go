package limitsfile

import (
	"cmp"
	"fmt"
	"strings"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// XDSExtension is the key in a descriptor's metadata under which an xDS resource
// has what its own fields can't say: a Struct with fields of a descriptor as
// limits files have them (docs/xds.md).
const XDSExtension = "rls"

// Fields of the API's RateLimitDescriptor that its Go package doesn't know yet. It
// will be seen by the tests when it does. The number of metadata is the next free
// one, taken on trust: so what isn't a Struct there is no mistake.
const (
	xdsQuotaMode protowire.Number = 7 // bool
	xdsMetadata  protowire.Number = 8 // google.protobuf.Struct
)

// ParseXDS reads xDS resources like limits files of the same content. A resource's name
// stands for the file name; problems have no lines.
func ParseXDS(resources []*confv3.RateLimitConfig, o Options) (*Set, error) {
	r := newReader(o)
	for i, resource := range resources {
		d := r.add(Printable(cmp.Or(resource.GetName(), fmt.Sprintf("resource %d", i+1))))
		r.open(d, (&xdsReader{d: d}).resource(resource))
	}
	return r.read()
}

// xdsReader writes an xDS resource as YAML nodes.
type xdsReader struct {
	d        *document
	defaults []*yaml.Node // of the domain
}

func (x *xdsReader) resource(r *confv3.RateLimitConfig) *yaml.Node {
	top := &place{domain: &Domain{Name: r.GetDomain()}}
	root := yamlMapping("domain", yamlString(r.GetDomain()), "descriptors", x.descriptors(r.GetDescriptors(), top, 1))
	for _, d := range x.defaults {
		yamlAdd(root, "defaults", d)
	}
	return root
}

// descriptors writes siblings.
func (x *xdsReader) descriptors(ds []*confv3.RateLimitDescriptor, parent *place, depth int) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode}
	if depth > MaxDepth {
		return list // which is told where it is compiled
	}
	for i, d := range ds {
		at := &place{domain: parent.domain, parent: parent, descriptor: &Descriptor{Key: d.GetKey(), Value: d.GetValue()}, number: i + 1}
		list.Content = append(list.Content, x.descriptor(d, at, depth))
	}
	return list
}

// descriptor writes d. Messages about it lead to at.
func (x *xdsReader) descriptor(d *confv3.RateLimitDescriptor, at *place, depth int) *yaml.Node {
	quota, metadata := xdsLaterFields(d)
	n := &yaml.Node{Kind: yaml.MappingNode}
	yamlAddText(n, "key", d.GetKey())
	yamlAddText(n, "value", d.GetValue())
	yamlAddFlag(n, "shadow_mode", d.GetShadowMode())
	yamlAddFlag(n, "quota_mode", quota)
	yamlAddFlag(n, "detailed_metric", d.GetDetailedMetric())
	var limit *yaml.Node
	if p := d.GetRateLimit(); p != nil {
		limit = xdsPolicy(p)
		yamlAdd(n, "rate_limit", limit)
	}
	if len(d.GetDescriptors()) > 0 {
		yamlAdd(n, "descriptors", x.descriptors(d.GetDescriptors(), at, depth+1))
	}
	x.extend(n, limit, metadata, at, depth)
	return n
}

// extend writes metadata into n, and what it has for the descriptor itself into
// its fields, after those of the same name: the last one counts.
func (x *xdsReader) extend(n, limit *yaml.Node, metadata *structpb.Struct, at *place, depth int) {
	ours, has := metadata.GetFields()[XDSExtension]
	if has {
		delete(metadata.GetFields(), XDSExtension)
		if ours.GetStructValue() == nil {
			x.d.errorf(nil, at, "%s in metadata: want a mapping with fields of a descriptor", XDSExtension)
		}
	}
	if len(metadata.GetFields()) > 0 {
		yamlAdd(n, "metadata", yamlStruct(metadata))
	}
	for name, v := range sortedFields(ours.GetStructValue()) {
		switch written := yamlValue(v); {
		case name == "rate_limit" && limit != nil && written.Kind == yaml.MappingNode:
			limit.Content = append(limit.Content, written.Content...)
		case name == "defaults" && depth == 1:
			x.defaults = append(x.defaults, written)
		default:
			yamlAdd(n, name, written)
		}
	}
}

func xdsPolicy(p *confv3.RateLimitPolicy) *yaml.Node {
	n := yamlMapping("requests_per_unit", yamlNumber(float64(p.GetRequestsPerUnit())))
	yamlAddFlag(n, "unlimited", p.GetUnlimited())
	yamlAddText(n, "name", p.GetName())
	if u := p.GetUnit(); u != confv3.RateLimitUnit_UNKNOWN {
		yamlAdd(n, "unit", yamlString(strings.ToLower(u.String())))
	}
	if len(p.GetReplaces()) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, r := range p.GetReplaces() {
			list.Content = append(list.Content, yamlMapping("name", yamlString(r.GetName())))
		}
		yamlAdd(n, "replaces", list)
	}
	return n
}

// xdsLaterFields reads from the wire what d's Go type has no field for.
func xdsLaterFields(d *confv3.RateLimitDescriptor) (quota bool, metadata *structpb.Struct) {
	for b := []byte(d.ProtoReflect().GetUnknown()); len(b) > 0; {
		number, kind, start := protowire.ConsumeTag(b)
		size := protowire.ConsumeFieldValue(number, kind, b[max(start, 0):])
		if start < 0 || size < 0 {
			break // which decoding has made sure of
		}
		value := b[start : start+size]
		b = b[start+size:]
		switch {
		case number == xdsQuotaMode && kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			quota = protowire.DecodeBool(v)
		case number == xdsMetadata && kind == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(value)
			if s := new(structpb.Struct); proto.Unmarshal(v, s) == nil {
				metadata = s
			}
		}
	}
	return quota, metadata
}
