package service

import (
	"fmt"
	"math"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/descriptors"
)

// dynamicMetadata returns a description of the request. Its field "metadata" has the metadata of the rules of all
// descriptors that passed. If two rules have the same field, the first value wins, but maps are merged.
func dynamicMetadata(req *rlsv3.RateLimitRequest, rules []*descriptors.Rule, statuses []*rlsv3.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	descriptorList, ruleMetadata := make([]any, len(req.Descriptors)), map[string]any{}
	for i, d := range req.Descriptors {
		descriptorList[i] = descriptorMetadata(d)
		if st := statuses[i]; st.CurrentLimit != nil && st.Code != rlsv3.RateLimitResponse_OVER_LIMIT {
			addMissingFields(ruleMetadata, rules[i].Metadata.AsMap()) // AsMap returns a copy
		}
	}
	requestMetadata := map[string]any{"domain": req.Domain, "descriptors": descriptorList}
	if req.HitsAddend != 0 {
		requestMetadata["hitsAddend"] = req.HitsAddend
	}
	if len(ruleMetadata) > 0 {
		requestMetadata["metadata"] = ruleMetadata
	}
	s, _ := structpb.NewStruct(requestMetadata) // it fails only for invalid UTF-8, and gRPC has rejected invalid UTF-8
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

// addMissingFields adds each field of src to dst, unless dst has a field with this name. If both fields are maps, it merges the
// maps in the same way.
func addMissingFields(dst, src map[string]any) {
	for name, value := range src {
		oldValue, exists := dst[name]
		if !exists {
			dst[name] = value
			continue
		}
		oldMap, isOldMap := oldValue.(map[string]any)
		if m, isMap := value.(map[string]any); isMap && isOldMap {
			addMissingFields(oldMap, m)
		}
	}
}

// These constants are fields of the dynamic metadata with Options.RuleMetadata.
const (
	decisionField  = "decision"  // the decision about the descriptor that the response headers describe
	decisionsField = "decisions" // the decision about each descriptor, in the order of the request
)

// addRuleMetadata adds the decisions to the dynamic metadata of resp. See Options.RuleMetadata.
func (c *Call) addRuleMetadata(resp *rlsv3.RateLimitResponse, headerStatus *rlsv3.RateLimitResponse_DescriptorStatus) {
	if resp.DynamicMetadata == nil {
		resp.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	}
	fields := resp.DynamicMetadata.Fields
	decisions := &structpb.ListValue{}
	firstHit := 0
	for i, st := range resp.Statuses {
		nextHit := c.hitsEnd(i, firstHit)
		decision := structpb.NewStructValue(c.decisionMetadata(i, firstHit, nextHit, st))
		decisions.Values = append(decisions.Values, decision)
		switch {
		case st == headerStatus:
			fields[decisionField] = decision
		case headerStatus == nil && fields[decisionField] == nil && c.Rules[i] != nil: // no limit was counted
			fields[decisionField] = decision // the decision of the first rule
		}
		firstHit = nextHit
	}
	fields[decisionsField] = structpb.NewListValue(decisions)
}

// decisionMetadata describes the decision about descriptor i. The descriptor has the hits in [firstHit, nextHit).
func (c *Call) decisionMetadata(i, firstHit, nextHit int, st *rlsv3.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	decision := &structpb.Struct{Fields: map[string]*structpb.Value{"code": structpb.NewStringValue(st.Code.String())}}
	rule := c.Rules[i]
	if rule == nil {
		return decision
	}
	decision.Fields["rule"] = structpb.NewStringValue(rule.Path)
	if rule.ShadowMode || firstHit < nextHit && c.hits[firstHit].Shadow {
		decision.Fields["shadow_mode"] = structpb.NewBoolValue(true)
	}
	if firstHit == nextHit {
		if rule.IsUnlimited() {
			decision.Fields["limit"] = structpb.NewStringValue("unlimited")
		}
		return decision
	}
	j := c.mostRestrictiveHit(firstHit, nextHit)
	l, r := c.limits[j], &c.results[j]
	decision.Fields["limit"] = structpb.NewStringValue(l.String())
	if l.Name != "" {
		decision.Fields["limit_name"] = structpb.NewStringValue(l.Name)
	}
	decision.Fields["over_limit"] = structpb.NewBoolValue(!r.Allowed)
	decision.Fields["remaining"] = structpb.NewNumberValue(float64(min(max(r.Remaining, 0), math.MaxUint32)))
	decision.Fields["source"] = structpb.NewStringValue(r.Source.String())
	if r.IsDegraded() {
		decision.Fields["reason"] = structpb.NewStringValue(r.Reason.String())
	}
	return decision
}
