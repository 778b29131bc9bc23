package service

import (
	"fmt"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/descriptors"
)

// dynamicMetadata tells what was asked, and under "metadata" what the rules of
// the descriptors that passed say of themselves: in request order, the first to
// name a field wins, maps are merged.
func dynamicMetadata(req *rlsv3.RateLimitRequest, rules []*descriptors.Rule, statuses []*rlsv3.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	asked := make([]*structpb.Value, len(req.Descriptors))
	merged := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i, d := range req.Descriptors {
		asked[i] = structpb.NewStructValue(describe(d))
		if st := statuses[i]; st.CurrentLimit != nil && st.Code != rlsv3.RateLimitResponse_OVER_LIMIT {
			merge(merged, rules[i].Metadata)
		}
	}
	m := &structpb.Struct{Fields: map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(req.Domain),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: asked}),
	}}
	if req.HitsAddend != 0 {
		m.Fields["hitsAddend"] = structpb.NewNumberValue(float64(req.HitsAddend))
	}
	if len(merged.Fields) > 0 {
		m.Fields["metadata"] = structpb.NewStructValue(merged)
	}
	return m
}

func describe(d *ratelimitv3.RateLimitDescriptor) *structpb.Struct {
	entries := make([]*structpb.Value, len(d.GetEntries()))
	for i, e := range d.GetEntries() {
		entries[i] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
	}
	s := &structpb.Struct{Fields: map[string]*structpb.Value{
		"entries": structpb.NewListValue(&structpb.ListValue{Values: entries}),
	}}
	if o := d.GetLimit(); o != nil {
		text := fmt.Sprintf("requests_per_unit:%d unit:%s", o.RequestsPerUnit, o.Unit)
		if o.UnitMultiplier != nil {
			text += fmt.Sprintf(" unit_multiplier:{value:%d}", o.UnitMultiplier.Value)
		}
		s.Fields["limit"] = structpb.NewStringValue(text)
	}
	if own := d.GetHitsAddend(); own != nil {
		s.Fields["hitsAddend"] = structpb.NewNumberValue(float64(own.Value))
	}
	return s
}

// merge adds to dst what src has and dst lacks. It never changes src, nor shares
// a map of src that it might change later: src belongs to the limits in force.
func merge(dst, src *structpb.Struct) {
	for name, value := range src.GetFields() {
		own, taken := dst.Fields[name]
		theirs := value.GetStructValue()
		switch {
		case !taken && theirs != nil:
			fresh := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(theirs.Fields))}
			merge(fresh, theirs)
			dst.Fields[name] = structpb.NewStructValue(fresh)
		case !taken:
			dst.Fields[name] = value
		case theirs != nil && own.GetStructValue() != nil:
			merge(own.GetStructValue(), theirs)
		}
	}
}
