package limitsfile

import (
	"fmt"
	"strings"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// level is a place of a field in a limits file or an override, or a set of places.
type level uint16

const (
	rootLevel level = 1 << iota
	descriptorLevel
	rateLimitLevel
	replacesLevel
	defaultsLevel
	overrideLevel     // the root of an override
	overrideItemLevel // an item of rate_limits in an override
	notLevel          // the condition in a not
	listLevel         // the file with the list of a condition
	switchLevel       // the root of a switch
	denialLevel
	ruleLevel       // the root of a rule that is created at run time
	shadowModeLevel // the root of the switch that replaces SHADOW_MODE

	overrideLevels  = overrideLevel | overrideItemLevel | switchLevel | shadowModeLevel
	levelsWithNotes = overrideLevel | switchLevel | shadowModeLevel | ruleLevel
	fileLevels      = ^overrideLevels &^ ruleLevel
	ruleLevels      = descriptorLevel | ruleLevel

	limitLevels = rateLimitLevel | overrideLevel | overrideItemLevel

	defaultLevels = limitLevels | defaultsLevel
)

// sameFormat returns all levels of the format that has l: overrides, rules that are created at run time, or files.
func (l level) sameFormat() level {
	switch {
	case l&overrideLevels != 0:
		return overrideLevels
	case l == ruleLevel:
		return fileLevels&^descriptorLevel | ruleLevel
	}
	return fileLevels
}

var levelNames = []string{
	"the root of the file", "the descriptor", "rate_limit", "an item of replaces", "defaults",
	"the override", "an item of rate_limits", "not", "a list in a file", "the switch", "denial", "the rule", "the switch",
}

// String returns the levels in words.
func (l level) String() string {
	var names []string
	for i, name := range levelNames {
		if l&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// row describes one field. A field with the value null counts as absent.
type row struct {
	fields.Field
	levels      level
	isExtension bool   // envoyproxy/ratelimit lacks the field
	help        string // the help that editors and docs show
}

// These constants are the values of isExtension.
const incumbentField, extensionField = false, true

func fieldOf(name string, kind fields.Kind) fields.Field { return fields.Field{Name: name, Kind: kind} }
func text(name string) fields.Field                      { return fieldOf(name, fields.Text) }
func flag(name string) fields.Field                      { return fieldOf(name, fields.Flag) }

func count(name string, minimum int64) fields.Field {
	return fields.Field{Name: name, Kind: fields.Count, Min: minimum, Max: fields.MaxCount}
}

func ratio(name string, maximum float64) fields.Field {
	return fields.Field{Name: name, Kind: fields.Ratio, MaxRatio: maximum}
}

func choice(name string, choices ...string) fields.Field {
	return fields.Field{Name: name, Kind: fields.Choice, Choices: choices}
}

func rowOf(f fields.Field, levels level, isExtension bool, help string) row {
	return row{f, levels, isExtension, help}
}

var unit = fields.Field{Name: "unit", Kind: fields.Text, Want: fields.JoinOr(limit.UnitNames())}

var hold = fields.Field{
	Name: "hold", Kind: fields.Duration, Min: limit.MinHold, Max: limit.MaxHold,
	Want: fmt.Sprintf("a time from %s to %s, such as 30s", limit.DurationText(limit.MinHold), limit.DurationText(limit.MaxHold)),
}

// schema has all fields. The defaults of a domain can't have unit_multiplier, because people must see it beside the unit.
var schema = [...]row{
	rowOf(text("domain"), rootLevel, incumbentField, "Domain of the rate-limit requests, as in Envoy's filter."),
	rowOf(fieldOf("defaults", fields.Object), rootLevel, extensionField,
		"Fields of all limits of the domain that do not set them."),
	rowOf(fieldOf("descriptors", fields.List), rootLevel|descriptorLevel, incumbentField,
		"Rules. A nested list has the rules for the next entry of a descriptor."),

	rowOf(text("key"), descriptorLevel, incumbentField, "Key of the entry. A * matches any text."),
	rowOf(text("value"), descriptorLevel, incumbentField,
		"Value of the entry. Without this field, each value has its own counter. A * matches any text."),
	rowOf(fieldOf("cidr", fields.Entries), ruleLevels|notLevel, extensionField,
		"Condition: the value is an IP address in one of these networks."),
	rowOf(fieldOf("in", fields.Entries), ruleLevels|notLevel, extensionField, "Condition: the value is in this list."),
	rowOf(text("prefix"), ruleLevels|notLevel, extensionField, "Condition: the value starts with this text."),
	rowOf(text("regex"), ruleLevels|notLevel, extensionField,
		"Condition: this regular expression (RE2) matches the whole value."),
	rowOf(text("cel"), ruleLevels|notLevel, extensionField,
		"Condition: this expression in CEL is true. It can use value and entries."),
	rowOf(fieldOf("not", fields.Object), ruleLevels, extensionField, "Condition: the value does not meet the nested condition."),
	rowOf(text("file"), listLevel, extensionField,
		"File with one entry a line. A relative path starts at the directory of the limits file."),
	rowOf(fieldOf("rate_limit", fields.Object), ruleLevels, incumbentField, "Limit of the rule."),
	rowOf(fieldOf("rate_limits", fields.List), ruleLevels|overrideLevel, extensionField,
		"Limits of the rule. All of them must admit a request."),
	rowOf(flag("shadow_mode"), ruleLevels|overrideLevel|shadowModeLevel, incumbentField,
		"Count and report denials, but let the requests pass."),
	rowOf(flag("quota_mode"), ruleLevels, incumbentField,
		"Deny a request only if all its descriptors in quota mode are over their limits."),
	rowOf(flag("detailed_metric"), ruleLevels, incumbentField, "Metrics of the rule have all entries of the descriptor."),
	rowOf(flag("value_to_metric"), ruleLevels, incumbentField, "Metrics of the rule have the value of this entry."),
	rowOf(flag("share_threshold"), ruleLevels, incumbentField, "All values that match the * share one counter."),
	rowOf(fieldOf("metadata", fields.Free), ruleLevels, incumbentField,
		"Metadata that the answer has when the rule lets a request pass."),
	rowOf(flag("refunds"), ruleLevels, extensionField, "false rejects requests that refund hits of a limit that counts."),
	rowOf(ratio("enforce", 100), ruleLevels|overrideLevel, extensionField,
		"Percentage of the keys whose denials count. The rule is in shadow mode for all other keys."),
	rowOf(count("max_hits", 1), ruleLevels, extensionField,
		"Largest number of hits of one call. A call with more hits is denied and charges nothing."),

	rowOf(fieldOf("denial", fields.Object), ruleLevels, extensionField,
		"Body and headers of the response to a request that the rule denies."),
	rowOf(text("message"), denialLevel, extensionField, "Plain text of the body."),
	rowOf(text("body"), denialLevel, extensionField, "Body as it is, for example JSON. Its content-type belongs in headers."),
	rowOf(fieldOf("headers", fields.Free), denialLevel, extensionField, "Names and values of headers."),

	rowOf(unit, limitLevels, incumbentField, "Window of the limit."),
	rowOf(count("requests_per_unit", 0), limitLevels, incumbentField, "Hits that a window admits, from 0 to 4294967295."),
	rowOf(flag("unlimited"), limitLevels, incumbentField, "true admits all requests without a counter."),
	rowOf(text("name"), limitLevels|replacesLevel, incumbentField, "Name of the limit, in metrics and for replaces."),
	rowOf(fieldOf("replaces", fields.List), limitLevels, incumbentField, "Names of the limits that this limit replaces."),

	rowOf(count("unit_multiplier", 1), limitLevels, extensionField, "Number of units in a window."),
	rowOf(text("timezone"), defaultLevels, extensionField,
		"Time zone, such as Europe/Berlin. Windows are days, weeks, months or years of its calendar."),
	rowOf(choice("algorithm", limit.AlgorithmNames()...), defaultLevels, extensionField, "How hits are counted."),
	rowOf(hold, defaultLevels, extensionField,
		"Time after which a hold of algorithm concurrency expires unless it is renewed, such as 30s."),
	rowOf(count("burst", 1), defaultLevels, extensionField, "Hits that token_bucket admits at once."),
	rowOf(choice("scope", limit.Global.String(), limit.Instance.String()), defaultLevels, extensionField,
		"global counts over all replicas, instance counts in each replica."),
	rowOf(choice("on_backend_failure", limit.FailLocal.String(), limit.FailAllow.String(), limit.FailDeny.String()), defaultLevels, extensionField,
		"How the limit decides while Redis is down."),
	rowOf(ratio("fallback_ratio", 1), defaultLevels, extensionField,
		"Share of the limit that each replica admits while Redis is down."),
	rowOf(flag("charge_denied"), defaultLevels, extensionField, "Whether a denied request is charged."),
	rowOf(flag("lease"), defaultLevels, extensionField,
		"Replicas take permits from Redis in batches and admit hits without a trip to Redis."),
	rowOf(ratio("lease_waste", limit.MaxLeaseWaste), defaultLevels, extensionField,
		"Largest share of the limit that replicas may hold unused."),
	rowOf(flag("enabled"), defaultLevels, extensionField, "false turns the limit off."),

	rowOf(ratio("factor", 1_000_000), overrideLevel|overrideItemLevel, extensionField, "Multiplies requests_per_unit and burst."),
	rowOf(text("expires_at"), levelsWithNotes, extensionField, "End of the change (RFC 3339)."),
	rowOf(text("reason"), levelsWithNotes, extensionField, "Why the author makes the change."),
	rowOf(text("set_by"), levelsWithNotes, extensionField, "Author of the change. The admin API sets it."),
	rowOf(text("set_at"), levelsWithNotes, extensionField, "Time of the change. The admin API sets it."),
}

var specFields = map[string]func(s *limit.Spec, v value){
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

func findRow(name string) *row {
	for i := range schema {
		if schema[i].Name == name {
			return &schema[i]
		}
	}
	return nil
}

func fieldsAt(l level) []string {
	var names []string
	for _, r := range schema {
		if r.levels&l != 0 {
			names = append(names, r.Name)
		}
	}
	return names
}
