package limitsfile

import (
	"fmt"
	"strings"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// level is a place of a field in a limits file or an override. Bits form a set of levels.
type level uint16

const (
	rootLevel level = 1 << iota
	descriptorLevel
	rateLimitLevel
	replacesLevel
	defaultsLevel
	overrideLevel // the root of an override
	patchLevel    // an item of rate_limits in an override
	notLevel      // the condition in a not
	listLevel     // a list of a condition in a file of its own
	switchLevel   // the root of a switch, and the notes of a run-time rule
	denialLevel

	overrideLevels = overrideLevel | patchLevel | switchLevel
	noteLevels     = overrideLevel | switchLevel
	fileLevels     = ^overrideLevels

	// limitLevels are the levels of the fields of a limit.
	limitLevels = rateLimitLevel | overrideLevel | patchLevel
)

// sameFormat returns all levels of the format that has l: overrides or files.
func (l level) sameFormat() level {
	if l&overrideLevels != 0 {
		return overrideLevels
	}
	return fileLevels
}

// levelNames has the name of each level, from rootLevel on.
var levelNames = []string{
	"the root of the file", "the descriptor", "rate_limit", "an item of replaces", "defaults",
	"the override", "an item of rate_limits", "not", "a list in a file", "the switch", "denial",
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

// row describes one field. Null means that the field is absent.
type row struct {
	fields.Field
	levels    level
	extension bool // the field is not in envoyproxy/ratelimit
}

// schema has all fields of limits files and overrides. unit_multiplier can't be a default,
// because a reader must find the window of a limit beside its unit.
var schema = [...]row{
	{Field: fields.Field{Name: "domain", Kind: fields.Text}, levels: rootLevel},
	{Field: fields.Field{Name: "defaults", Kind: fields.Object}, levels: rootLevel, extension: true},
	{Field: fields.Field{Name: "descriptors", Kind: fields.List}, levels: rootLevel | descriptorLevel},

	{Field: fields.Field{Name: "key", Kind: fields.Text}, levels: descriptorLevel},
	{Field: fields.Field{Name: "value", Kind: fields.Text}, levels: descriptorLevel},
	{Field: fields.Field{Name: "cidr", Kind: fields.Entries}, levels: descriptorLevel | notLevel, extension: true},
	{Field: fields.Field{Name: "in", Kind: fields.Entries}, levels: descriptorLevel | notLevel, extension: true},
	{Field: fields.Field{Name: "prefix", Kind: fields.Text}, levels: descriptorLevel | notLevel, extension: true},
	{Field: fields.Field{Name: "regex", Kind: fields.Text}, levels: descriptorLevel | notLevel, extension: true},
	{Field: fields.Field{Name: "cel", Kind: fields.Text}, levels: descriptorLevel | notLevel, extension: true},
	{Field: fields.Field{Name: "not", Kind: fields.Object}, levels: descriptorLevel, extension: true},
	{Field: fields.Field{Name: "file", Kind: fields.Text}, levels: listLevel, extension: true},
	{Field: fields.Field{Name: "rate_limit", Kind: fields.Object}, levels: descriptorLevel},
	{Field: fields.Field{Name: "rate_limits", Kind: fields.List}, levels: descriptorLevel | overrideLevel, extension: true},
	{Field: fields.Field{Name: "shadow_mode", Kind: fields.Flag}, levels: descriptorLevel | overrideLevel},
	{Field: fields.Field{Name: "quota_mode", Kind: fields.Flag}, levels: descriptorLevel},
	{Field: fields.Field{Name: "detailed_metric", Kind: fields.Flag}, levels: descriptorLevel},
	{Field: fields.Field{Name: "value_to_metric", Kind: fields.Flag}, levels: descriptorLevel},
	{Field: fields.Field{Name: "share_threshold", Kind: fields.Flag}, levels: descriptorLevel},
	{Field: fields.Field{Name: "metadata", Kind: fields.Free}, levels: descriptorLevel},
	{Field: fields.Field{Name: "refunds", Kind: fields.Flag}, levels: descriptorLevel, extension: true},
	{Field: fields.Field{Name: "enforce", Kind: fields.Ratio, MaxRatio: 100}, levels: descriptorLevel | overrideLevel, extension: true},
	{Field: fields.Field{Name: "max_hits", Kind: fields.Count, Min: 1, Max: fields.MaxCount}, levels: descriptorLevel, extension: true},

	{Field: fields.Field{Name: "denial", Kind: fields.Object}, levels: descriptorLevel, extension: true},
	{Field: fields.Field{Name: "message", Kind: fields.Text}, levels: denialLevel, extension: true},
	{Field: fields.Field{Name: "body", Kind: fields.Text}, levels: denialLevel, extension: true},
	{Field: fields.Field{Name: "headers", Kind: fields.Free}, levels: denialLevel, extension: true},

	{Field: fields.Field{Name: "unit", Kind: fields.Text}, levels: limitLevels},
	{Field: fields.Field{Name: "requests_per_unit", Kind: fields.Count, Max: fields.MaxCount}, levels: limitLevels},
	{Field: fields.Field{Name: "unlimited", Kind: fields.Flag}, levels: limitLevels},
	{Field: fields.Field{Name: "name", Kind: fields.Text}, levels: limitLevels | replacesLevel},
	{Field: fields.Field{Name: "replaces", Kind: fields.List}, levels: limitLevels},

	{Field: fields.Field{Name: "unit_multiplier", Kind: fields.Count, Min: 1, Max: fields.MaxCount}, levels: limitLevels, extension: true},
	{Field: fields.Field{Name: "timezone", Kind: fields.Text}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "algorithm", Kind: fields.Choice, Choices: limit.AlgorithmNames()}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "hold", Kind: fields.Duration, Min: limit.MinHold, Max: limit.MaxHold, Want: wantHold}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "burst", Kind: fields.Count, Min: 1, Max: fields.MaxCount}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "scope", Kind: fields.Choice, Choices: []string{limit.Global.String(), limit.Instance.String()}}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "on_backend_failure", Kind: fields.Choice, Choices: []string{limit.FailLocal.String(), limit.FailAllow.String(), limit.FailDeny.String()}}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "fallback_ratio", Kind: fields.Ratio, MaxRatio: 1}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "charge_denied", Kind: fields.Flag}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "lease", Kind: fields.Flag}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "lease_waste", Kind: fields.Ratio, MaxRatio: limit.MaxLeaseWaste}, levels: limitLevels | defaultsLevel, extension: true},
	{Field: fields.Field{Name: "enabled", Kind: fields.Flag}, levels: limitLevels | defaultsLevel, extension: true},

	{Field: fields.Field{Name: "factor", Kind: fields.Ratio, MaxRatio: 1_000_000}, levels: overrideLevel | patchLevel, extension: true},
	{Field: fields.Field{Name: "expires_at", Kind: fields.Text}, levels: noteLevels, extension: true},
	{Field: fields.Field{Name: "reason", Kind: fields.Text}, levels: noteLevels, extension: true},
	{Field: fields.Field{Name: "set_by", Kind: fields.Text}, levels: noteLevels, extension: true},
	{Field: fields.Field{Name: "set_at", Kind: fields.Text}, levels: noteLevels, extension: true},
}

// wantHold describes the values of hold.
var wantHold = fmt.Sprintf("a time from %s to %s, such as 30s", limit.DurationText(limit.MinHold), limit.DurationText(limit.MaxHold))

// specFields sets the fields of limit.Spec.
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

// findRow returns the row of a field, or nil.
func findRow(name string) *row {
	for i := range schema {
		if schema[i].Name == name {
			return &schema[i]
		}
	}
	return nil
}

// fieldsAt returns the names of the fields that level l allows.
func fieldsAt(l level) []string {
	var names []string
	for _, r := range schema {
		if r.levels&l != 0 {
			names = append(names, r.Name)
		}
	}
	return names
}
