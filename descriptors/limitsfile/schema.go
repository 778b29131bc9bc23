package limitsfile

import (
	"fmt"
	"strings"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// objectType is a type of object in a limits file or in a change at run time, or a set of such types. Each type has its
// own fields.
type objectType uint16

const (
	rootObject objectType = 1 << iota
	descriptorObject
	rateLimitObject
	replacesObject
	defaultsObject
	overrideObject     // the root of an override
	overrideItemObject // an item of rate_limits in an override
	notObject          // the condition in a not
	listObject         // the file with the list of a condition
	switchObject       // the root of a switch
	denialObject
	ruleObject       // the root of a rule that is created at run time
	shadowModeObject // the root of the switch that replaces SHADOW_MODE
	quotaObject

	overrideObjects  = overrideObject | overrideItemObject | switchObject | shadowModeObject
	objectsWithNotes = overrideObject | switchObject | shadowModeObject | ruleObject
	fileObjects      = ^overrideObjects &^ ruleObject
	ruleObjects      = descriptorObject | ruleObject

	limitObjects = rateLimitObject | overrideObject | overrideItemObject

	defaultObjects = limitObjects | defaultsObject
)

// typesInSameDocument returns all object types of the format of t. There are three formats: overrides with switches, rules
// that are created at run time, and files.
func (t objectType) typesInSameDocument() objectType {
	switch {
	case t&overrideObjects != 0:
		return overrideObjects
	case t == ruleObject:
		return fileObjects&^descriptorObject | ruleObject
	}
	return fileObjects
}

var objectNames = []string{
	"the root of the file", "the descriptor", "rate_limit", "an item of replaces", "defaults",
	"the override", "an item of rate_limits", "not", "a list in a file", "the switch", "denial", "the rule", "the switch",
	"quota",
}

// String returns the object types in words: "rate_limit or defaults".
func (t objectType) String() string {
	var names []string
	for i, name := range objectNames {
		if t&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// schemaField describes a field that objects can have. A field with the value null counts as absent.
type schemaField struct {
	fields.Field
	objects     objectType
	isOnlyInRls bool   // envoyproxy/ratelimit lacks the field
	help        string // the help that editors and docs show
}

// These constants are the values of isOnlyInRls.
const incumbentField, extensionField = false, true

func fieldOfKind(name string, kind fields.Kind) fields.Field {
	return fields.Field{Name: name, Kind: kind}
}
func textField(name string) fields.Field { return fieldOfKind(name, fields.Text) }
func flagField(name string) fields.Field { return fieldOfKind(name, fields.Flag) }

func countField(name string, minimum int64) fields.Field {
	return fields.Field{Name: name, Kind: fields.Count, Min: minimum, Max: fields.MaxCount}
}

func ratioField(name string, maximum float64) fields.Field {
	return fields.Field{Name: name, Kind: fields.Ratio, MaxRatio: maximum}
}

func choiceField(name string, choices ...string) fields.Field {
	return fields.Field{Name: name, Kind: fields.Choice, Choices: choices}
}

func newField(f fields.Field, objects objectType, isOnlyInRls bool, help string) schemaField {
	return schemaField{f, objects, isOnlyInRls, help}
}

var unitField = fields.Field{Name: "unit", Kind: fields.Text, Want: fields.JoinOr(limit.UnitNames())}

var holdField = fields.Field{
	Name: "hold", Kind: fields.Duration, Min: limit.MinHold, Max: limit.MaxHold,
	Want: fmt.Sprintf("a time from %s to %s, such as 30s", limit.DurationText(limit.MinHold), limit.DurationText(limit.MaxHold)),
}

var quotaTTLField = fields.Field{
	Name: "ttl", Kind: fields.Duration, Min: minQuotaTTL, Max: maxQuotaTTL,
	Want: fmt.Sprintf("a time from %s to %s, such as 30s", limit.DurationText(minQuotaTTL), limit.DurationText(maxQuotaTTL)),
}

// schema has all fields. The defaults of a domain can't have unit_multiplier, because people must see it beside the unit.
var schema = [...]schemaField{
	newField(textField("domain"), rootObject, incumbentField, "Domain of the rate-limit requests, as in Envoy's filter."),
	newField(fieldOfKind("defaults", fields.Object), rootObject, extensionField,
		"Default values: a limit of the domain that leaves out one of these fields gets the value from here."),
	newField(fieldOfKind("quota_order", fields.List), rootObject, extensionField,
		"Order of the keys of a quota bucket id. The id itself has no order, so rls sorts its keys before it matches them with nested "+
			"descriptors. Keys that are not in this list follow in alphabetical order."),
	newField(fieldOfKind("descriptors", fields.List), rootObject|descriptorObject, incumbentField,
		"List of rules. At the root, these are the rules of the domain. Below a rule, these are the rules for the next entry of a descriptor."),

	newField(textField("key"), descriptorObject, incumbentField, "Key of the entry. A * matches any text."),
	newField(textField("value"), descriptorObject, incumbentField,
		"Value of the entry. A * matches any text. If a rule has neither a value nor a condition, it matches each value, and each value has its own counter."),
	newField(fieldOfKind("cidr", fields.ListOrFile), ruleObjects|notObject, extensionField,
		"Condition: the value is an IP address in one of these networks."),
	newField(fieldOfKind("in", fields.ListOrFile), ruleObjects|notObject, extensionField, "Condition: the value is in this list."),
	newField(textField("prefix"), ruleObjects|notObject, extensionField, "Condition: the value starts with this text."),
	newField(textField("regex"), ruleObjects|notObject, extensionField,
		"Condition: this regular expression (RE2) matches the whole value."),
	newField(textField("cel"), ruleObjects|notObject, extensionField,
		"Condition: this expression in CEL is true. The expression can use the names value and entries."),
	newField(fieldOfKind("not", fields.Object), ruleObjects, extensionField, "Condition: the value does not meet the nested condition."),
	newField(textField("file"), listObject, extensionField,
		"File with one item on each line. A relative path starts at the directory of the limits file."),
	newField(fields.Field{Name: "rate_limit", Kind: fields.Object, Want: "a mapping such as {unit: minute, requests_per_unit: 5}; for several limits, write rate_limits"}, ruleObjects, incumbentField, "Limit of the rule."),
	newField(fieldOfKind("rate_limits", fields.List), ruleObjects|overrideObject, extensionField,
		"Limits of the rule. All of them must admit a request."),
	newField(flagField("shadow_mode"), ruleObjects|overrideObject|shadowModeObject, incumbentField,
		"true: rls counts and reports the denials of the rule, but lets the requests pass."),
	newField(flagField("quota_mode"), ruleObjects, incumbentField,
		"true: rls denies a request only if all its descriptors in quota mode are over their limits."),
	newField(flagField("detailed_metric"), ruleObjects, incumbentField, "true: the metrics of the rule show the values of all entries of the descriptor."),
	newField(flagField("value_to_metric"), ruleObjects, incumbentField, "true: the metrics of the rule show the value of this entry."),
	newField(flagField("share_threshold"), ruleObjects, incumbentField, "true: all values that match the * share one counter."),
	newField(fieldOfKind("metadata", fields.AnyMapping), ruleObjects, incumbentField,
		"Metadata of the answer to a request that the rule lets pass."),
	newField(flagField("refunds"), ruleObjects, extensionField, "false: rls rejects requests that refund hits of the rule, unless all limits of the rule are unlimited or replaced."),
	newField(ratioField("enforce", 100), ruleObjects|overrideObject, extensionField,
		"Percentage of the keys for which the rule denies. For all other keys, the rule is in shadow mode."),
	newField(countField("max_hits", 1), ruleObjects, extensionField,
		"Largest number of hits of one call. A call with more hits is denied and charges nothing."),

	newField(fields.Field{Name: "quota", Kind: fields.Any, Want: "true or false, or a mapping"}, ruleObjects, extensionField,
		"Envoys with the filter rate_limit_quota share the limit, without a call per request."),
	newField(ratioField("min_share", 1), quotaObject, extensionField, "Smallest share of a bucket without demand, as a part of an equal share; default 0.01. "+
		"With 0.01 and ten buckets, such a bucket gets at least 0.1 % of the limit."),
	newField(ratioField("headroom", maxHeadroom), quotaObject, extensionField, "Part of the limit that rls keeps free for new buckets; default 0.01."),
	newField(quotaTTLField, quotaObject, extensionField, "Time after which a grant expires if rls does not send it again; default 15s."),
	newField(fieldOfKind("denial", fields.Object), ruleObjects, extensionField,
		"Body and headers of the response to a request that the rule denies."),
	newField(textField("message"), denialObject, extensionField, "Plain text of the body."),
	newField(textField("body"), denialObject, extensionField, "Body that rls sends unchanged, for example JSON. Put the content-type of the body into headers."),
	newField(fieldOfKind("headers", fields.AnyMapping), denialObject, extensionField, "Names and values of headers."),

	newField(unitField, limitObjects, incumbentField, "Window of the limit."),
	newField(countField("requests_per_unit", 0), limitObjects, incumbentField, "Number of hits that a window admits."),
	newField(flagField("unlimited"), limitObjects, incumbentField, "true: rls admits all requests and counts nothing."),
	newField(textField("name"), limitObjects|replacesObject, incumbentField, "Name of the limit. Metrics show this name, and the field replaces of another limit can contain it."),
	newField(fieldOfKind("replaces", fields.List), limitObjects, incumbentField, "Names of the limits that this limit replaces."),

	newField(countField("unit_multiplier", 1), limitObjects, extensionField, "Number of units in a window."),
	newField(textField("timezone"), defaultObjects, extensionField,
		"Time zone, such as Europe/Berlin. Windows are days, weeks, months or years of its calendar."),
	newField(choiceField("algorithm", limit.AlgorithmNames()...), defaultObjects, extensionField, "Way to count hits."),
	newField(holdField, defaultObjects, extensionField,
		"Only for concurrency: time after which a hold expires if nobody renews it."),
	newField(countField("burst", 1), defaultObjects, extensionField, "Only for token_bucket: hits that a full bucket admits at once."),
	newField(choiceField("scope", limit.Region.String(), limit.Instance.String(), limit.Global.String()), defaultObjects, extensionField,
		"region: all replicas with the same REDIS_URL share one counter. instance: each replica has its own counter. global: all regions together have the limit, if REDIS_GLOBAL_URL is set. Without it, global is region."),
	newField(choiceField("on_backend_failure", limit.FailLocal.String(), limit.FailAllow.String(), limit.FailDeny.String()), defaultObjects, extensionField,
		"While Redis is down, local counts in each replica, allow admits all hits, and deny denies all hits."),
	newField(ratioField("fallback_ratio", 1), defaultObjects, extensionField,
		"Part of the limit that each replica admits while Redis is down."),
	newField(flagField("charge_denied"), defaultObjects, extensionField, "true: rls also charges the hits of denied requests."),
	newField(flagField("lease"), defaultObjects, extensionField,
		"true: replicas take many permits from Redis at once, so that most hits need no trip to Redis."),
	newField(ratioField("lease_waste", limit.MaxLeaseWaste), defaultObjects, extensionField,
		"Largest part of the limit that all replicas together may hold as unused permits."),
	newField(flagField("enabled"), defaultObjects, extensionField, "false: the limit is off."),

	newField(ratioField("factor", 1_000_000), overrideObject|overrideItemObject, extensionField, "Multiplies requests_per_unit and burst."),
	newField(textField("expires_at"), objectsWithNotes, extensionField, "End of the change (RFC 3339)."),
	newField(textField("reason"), objectsWithNotes, extensionField, "Why the author makes the change."),
	newField(textField("set_by"), objectsWithNotes, extensionField, "Author of the change. The admin API sets it."),
	newField(textField("set_at"), objectsWithNotes, extensionField, "Time of the change. The admin API sets it."),
}

var specSetters = map[string]func(s *limit.Spec, v value){
	"unit":               func(s *limit.Spec, v value) { s.Unit, _ = limit.ParseUnit(v.Text) },
	"requests_per_unit":  func(s *limit.Spec, v value) { s.Requests = uint32(v.Number) },
	"unit_multiplier":    func(s *limit.Spec, v value) { s.Multiplier = uint32(v.Number) },
	"timezone":           func(s *limit.Spec, v value) { s.Timezone = v.Text },
	"algorithm":          func(s *limit.Spec, v value) { s.Algorithm, _ = limit.ParseAlgorithm(v.Text) },
	"hold":               func(s *limit.Spec, v value) { s.Hold = v.Number },
	"burst":              func(s *limit.Spec, v value) { s.Burst = uint32(v.Number) },
	"scope":              func(s *limit.Spec, v value) { s.Scope, _ = limit.ParseScope(v.Text) },
	"on_backend_failure": func(s *limit.Spec, v value) { s.OnBackendFailure, _ = limit.ParseFailureMode(v.Text) },
	"fallback_ratio":     func(s *limit.Spec, v value) { s.FallbackRatio = v.Ratio },
	"charge_denied":      func(s *limit.Spec, v value) { s.ChargeDenied = v.Flag },
	"lease":              func(s *limit.Spec, v value) { s.Lease = v.Flag },
	"lease_waste":        func(s *limit.Spec, v value) { s.LeaseWaste = v.Ratio },
}

func findField(name string) *schemaField {
	for i := range schema {
		if schema[i].Name == name {
			return &schema[i]
		}
	}
	return nil
}

func fieldsOf(t objectType) []string {
	var names []string
	for _, r := range schema {
		if r.objects&t != 0 {
			names = append(names, r.Name)
		}
	}
	return names
}
