package service

import (
	"fmt"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/descriptors"
)

// dynamicMetadata returns a description of the request. Its field "metadata" merges the metadata of the rules whose
// descriptors passed. The first value of a field wins, and maps are merged.
func dynamicMetadata(req *rlsv3.RateLimitRequest, rules []*descriptors.Rule, statuses []*rlsv3.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	requested, ruleMetadata := make([]any, len(req.Descriptors)), map[string]any{}
	for i, d := range req.Descriptors {
		requested[i] = descriptorMetadata(d)
		if st := statuses[i]; st.CurrentLimit != nil && st.Code != rlsv3.RateLimitResponse_OVER_LIMIT {
			mergeMissing(ruleMetadata, rules[i].Metadata.AsMap()) // AsMap returns a copy
		}
	}
	m := map[string]any{"domain": req.Domain, "descriptors": requested}
	if req.HitsAddend != 0 {
		m["hitsAddend"] = req.HitsAddend
	}
	if len(ruleMetadata) > 0 {
		m["metadata"] = ruleMetadata
	}
	s, _ := structpb.NewStruct(m) // fails only for invalid UTF-8, which gRPC has rejected
	return s
}

func descriptorMetadata(d *ratelimitv3.RateLimitDescriptor) map[string]any {
	entries := make([]any, len(d.GetEntries()))
	for i, e := range d.GetEntries() {
		entries[i] = e.GetKey() + "=" + e.GetValue()
	}
	m := map[string]any{"entries": entries}
	if l := d.GetLimit(); l != nil {
		text := fmt.Sprintf("requests_per_unit:%d unit:%s", l.RequestsPerUnit, l.Unit)
		if l.UnitMultiplier != nil {
			text += fmt.Sprintf(" unit_multiplier:{value:%d}", l.UnitMultiplier.Value)
		}
		m["limit"] = text
	}
	if addend := d.GetHitsAddend(); addend != nil {
		m["hitsAddend"] = addend.Value
	}
	return m
}

// mergeMissing adds to dst the fields of src that dst lacks.
func mergeMissing(dst, src map[string]any) {
	for name, value := range src {
		existing, exists := dst[name]
		if !exists {
			dst[name] = value
			continue
		}
		existingMap, existingIsMap := existing.(map[string]any)
		if m, isMap := value.(map[string]any); isMap && existingIsMap {
			mergeMissing(existingMap, m)
		}
	}
}
