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

// XDSExtension is the key of our fields in the metadata of an xDS descriptor: a Struct
// with fields of a descriptor as in limits files (docs/xds.md).
const XDSExtension = "rls"

// Fields of RateLimitDescriptor that the API's Go package doesn't have yet. A test fails
// once it has them. xdsMetadata is the next free number, which the API has not assigned
// yet, so a value that isn't a Struct is ignored.
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

// xdsReader converts an xDS resource to YAML nodes.
type xdsReader struct {
	d        *document
	defaults []*yaml.Node // of the domain
}

func (x *xdsReader) resource(r *confv3.RateLimitConfig) *yaml.Node {
	top := &position{domain: &Domain{Name: r.GetDomain()}}
	root := yamlMapping("domain", yamlString(r.GetDomain()), "descriptors", x.descriptors(r.GetDescriptors(), top, 1))
	for _, d := range x.defaults {
		yamlAdd(root, "defaults", d)
	}
	return root
}

// descriptors converts the children of parent.
func (x *xdsReader) descriptors(ds []*confv3.RateLimitDescriptor, parent *position, depth int) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode}
	if depth > MaxDepth {
		return list // reported when the list is read
	}
	for i, d := range ds {
		pos := &position{domain: parent.domain, parent: parent, descriptor: &Descriptor{Key: d.GetKey(), Value: d.GetValue()}, number: i + 1}
		list.Content = append(list.Content, x.descriptor(d, pos, depth))
	}
	return list
}

// descriptor converts d. pos is for problems.
func (x *xdsReader) descriptor(d *confv3.RateLimitDescriptor, pos *position, depth int) *yaml.Node {
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
		yamlAdd(n, "descriptors", x.descriptors(d.GetDescriptors(), pos, depth+1))
	}
	x.extend(n, limit, metadata, pos, depth)
	return n
}

// extend adds metadata to n. Our fields in it come after the fields of n, because the last
// of two fields with one name counts.
func (x *xdsReader) extend(n, limit *yaml.Node, metadata *structpb.Struct, pos *position, depth int) {
	ours, has := metadata.GetFields()[XDSExtension]
	if has {
		delete(metadata.GetFields(), XDSExtension)
		if ours.GetStructValue() == nil {
			x.d.errorf(nil, pos, "%s in metadata: want a mapping with fields of a descriptor", XDSExtension)
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

// xdsLaterFields returns the fields of d that its Go type does not have.
func xdsLaterFields(d *confv3.RateLimitDescriptor) (quota bool, metadata *structpb.Struct) {
	for b := []byte(d.ProtoReflect().GetUnknown()); len(b) > 0; {
		number, kind, start := protowire.ConsumeTag(b)
		size := protowire.ConsumeFieldValue(number, kind, b[max(start, 0):])
		if start < 0 || size < 0 {
			break // not for a message that was decoded
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
