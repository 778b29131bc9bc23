package service

import (
	"fmt"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/descriptors"
)

// dynamicMetadata returns a description of the request. Its field "metadata" merges the
// metadata of the rules whose descriptors passed, in the order of the request. If two
// rules have the same field, maps are merged, and otherwise the first value wins.
func dynamicMetadata(req *rlsv3.RateLimitRequest, rules []*descriptors.Rule, statuses []*rlsv3.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	requested := make([]*structpb.Value, len(req.Descriptors))
	ruleMetadata := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i, d := range req.Descriptors {
		requested[i] = structpb.NewStructValue(describe(d))
		if st := statuses[i]; st.CurrentLimit != nil && st.Code != rlsv3.RateLimitResponse_OVER_LIMIT {
			merge(ruleMetadata, rules[i].Metadata)
		}
	}
	m := &structpb.Struct{Fields: map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(req.Domain),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: requested}),
	}}
	if req.HitsAddend != 0 {
		m.Fields["hitsAddend"] = structpb.NewNumberValue(float64(req.HitsAddend))
	}
	if len(ruleMetadata.Fields) > 0 {
		m.Fields["metadata"] = structpb.NewStructValue(ruleMetadata)
	}
	return m
}

// describe returns the dynamic metadata of one descriptor.
func describe(d *ratelimitv3.RateLimitDescriptor) *structpb.Struct {
	entries := make([]*structpb.Value, len(d.GetEntries()))
	for i, e := range d.GetEntries() {
		entries[i] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
	}
	s := &structpb.Struct{Fields: map[string]*structpb.Value{
		"entries": structpb.NewListValue(&structpb.ListValue{Values: entries}),
	}}
	if l := d.GetLimit(); l != nil {
		text := fmt.Sprintf("requests_per_unit:%d unit:%s", l.RequestsPerUnit, l.Unit)
		if l.UnitMultiplier != nil {
			text += fmt.Sprintf(" unit_multiplier:{value:%d}", l.UnitMultiplier.Value)
		}
		s.Fields["limit"] = structpb.NewStringValue(text)
	}
	if addend := d.GetHitsAddend(); addend != nil {
		s.Fields["hitsAddend"] = structpb.NewNumberValue(float64(addend.Value))
	}
	return s
}

// merge adds the fields of src that dst lacks to dst. It copies the maps of src, because
// src belongs to the limits in force and a later merge changes the maps of dst.
func merge(dst, src *structpb.Struct) {
	for name, value := range src.GetFields() {
		existing, exists := dst.Fields[name]
		subfields := value.GetStructValue()
		switch {
		case !exists && subfields != nil:
			copyOfMap := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(subfields.Fields))}
			merge(copyOfMap, subfields)
			dst.Fields[name] = structpb.NewStructValue(copyOfMap)
		case !exists:
			dst.Fields[name] = value
		case subfields != nil && existing.GetStructValue() != nil:
			merge(existing.GetStructValue(), subfields)
		}
	}
}
