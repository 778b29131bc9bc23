package limitsfile

import (
	"strings"

	"github.com/agnivade/levenshtein"

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

// kind is the type of a field. Every kind allows null, which means absent.
type kind uint8

const (
	textKind     kind = iota // any scalar except a float, as written
	flagKind                 // a boolean
	countKind                // minValue to 2^32-1
	ratioKind                // above 0, at most maxValue
	choiceKind               // one of the choices of the row
	listKind                 // a list of mappings
	objectKind               // a mapping
	freeKind                 // a mapping with values of any type
	entriesKind              // a list of texts, or a mapping with a file
	durationKind             // minMicros to maxMicros, like 30s
)

// row describes one field.
type row struct {
	name      string
	kind      kind
	levels    level
	extension bool // the field is not in envoyproxy/ratelimit
	choices   []string
	minValue  int64   // of a countKind
	maxValue  float64 // of a ratioKind

	minMicros, maxMicros int64 // of a durationKind
}

// schema has all fields of limits files and overrides. unit_multiplier can't be a default,
// because a reader must find the window of a limit beside its unit.
var schema = [...]row{
	{name: "domain", kind: textKind, levels: rootLevel},
	{name: "defaults", kind: objectKind, levels: rootLevel, extension: true},
	{name: "descriptors", kind: listKind, levels: rootLevel | descriptorLevel},

	{name: "key", kind: textKind, levels: descriptorLevel},
	{name: "value", kind: textKind, levels: descriptorLevel},
	{name: "cidr", kind: entriesKind, levels: descriptorLevel | notLevel, extension: true},
	{name: "in", kind: entriesKind, levels: descriptorLevel | notLevel, extension: true},
	{name: "prefix", kind: textKind, levels: descriptorLevel | notLevel, extension: true},
	{name: "regex", kind: textKind, levels: descriptorLevel | notLevel, extension: true},
	{name: "cel", kind: textKind, levels: descriptorLevel | notLevel, extension: true},
	{name: "not", kind: objectKind, levels: descriptorLevel, extension: true},
	{name: "file", kind: textKind, levels: listLevel, extension: true},
	{name: "rate_limit", kind: objectKind, levels: descriptorLevel},
	{name: "rate_limits", kind: listKind, levels: descriptorLevel | overrideLevel, extension: true},
	{name: "shadow_mode", kind: flagKind, levels: descriptorLevel | overrideLevel},
	{name: "quota_mode", kind: flagKind, levels: descriptorLevel},
	{name: "detailed_metric", kind: flagKind, levels: descriptorLevel},
	{name: "value_to_metric", kind: flagKind, levels: descriptorLevel},
	{name: "share_threshold", kind: flagKind, levels: descriptorLevel},
	{name: "metadata", kind: freeKind, levels: descriptorLevel},
	{name: "refunds", kind: flagKind, levels: descriptorLevel, extension: true},
	{name: "enforce", kind: ratioKind, maxValue: 100, levels: descriptorLevel | overrideLevel, extension: true},
	{name: "max_hits", kind: countKind, minValue: 1, levels: descriptorLevel, extension: true},

	{name: "denial", kind: objectKind, levels: descriptorLevel, extension: true},
	{name: "message", kind: textKind, levels: denialLevel, extension: true},
	{name: "body", kind: textKind, levels: denialLevel, extension: true},
	{name: "headers", kind: freeKind, levels: denialLevel, extension: true},

	{name: "unit", kind: textKind, levels: limitLevels},
	{name: "requests_per_unit", kind: countKind, levels: limitLevels},
	{name: "unlimited", kind: flagKind, levels: limitLevels},
	{name: "name", kind: textKind, levels: limitLevels | replacesLevel},
	{name: "replaces", kind: listKind, levels: limitLevels},

	{name: "unit_multiplier", kind: countKind, minValue: 1, levels: limitLevels, extension: true},
	{name: "timezone", kind: textKind, levels: limitLevels | defaultsLevel, extension: true},
	{name: "algorithm", kind: choiceKind, levels: limitLevels | defaultsLevel, extension: true, choices: limit.AlgorithmNames()},
	{
		name: "hold", kind: durationKind, minMicros: limit.MinHold, maxMicros: limit.MaxHold,
		levels: limitLevels | defaultsLevel, extension: true,
	},
	{name: "burst", kind: countKind, minValue: 1, levels: limitLevels | defaultsLevel, extension: true},
	{
		name: "scope", kind: choiceKind, levels: limitLevels | defaultsLevel, extension: true,
		choices: []string{limit.Global.String(), limit.Instance.String()},
	},
	{
		name: "on_backend_failure", kind: choiceKind, levels: limitLevels | defaultsLevel, extension: true,
		choices: []string{limit.FailLocal.String(), limit.FailAllow.String(), limit.FailDeny.String()},
	},
	{name: "fallback_ratio", kind: ratioKind, maxValue: 1, levels: limitLevels | defaultsLevel, extension: true},
	{name: "charge_denied", kind: flagKind, levels: limitLevels | defaultsLevel, extension: true},
	{name: "lease", kind: flagKind, levels: limitLevels | defaultsLevel, extension: true},
	{name: "lease_waste", kind: ratioKind, maxValue: limit.MaxLeaseWaste, levels: limitLevels | defaultsLevel, extension: true},
	{name: "enabled", kind: flagKind, levels: limitLevels | defaultsLevel, extension: true},

	{name: "factor", kind: ratioKind, maxValue: 1_000_000, levels: overrideLevel | patchLevel, extension: true},
	{name: "expires_at", kind: textKind, levels: noteLevels, extension: true},
	{name: "reason", kind: textKind, levels: noteLevels, extension: true},
	{name: "set_by", kind: textKind, levels: noteLevels, extension: true},
	{name: "set_at", kind: textKind, levels: noteLevels, extension: true},
}

// specFields sets the fields of limit.Spec.
var specFields = map[string]func(s *limit.Spec, v value){
	"unit":               func(s *limit.Spec, v value) { s.Unit, _ = limit.ParseUnit(v.text) },
	"requests_per_unit":  func(s *limit.Spec, v value) { s.Requests = v.num },
	"unit_multiplier":    func(s *limit.Spec, v value) { s.Multiplier = v.num },
	"timezone":           func(s *limit.Spec, v value) { s.Timezone = v.text },
	"algorithm":          func(s *limit.Spec, v value) { s.Algorithm, _ = limit.ParseAlgorithm(v.text) },
	"hold":               func(s *limit.Spec, v value) { s.Hold = v.micros },
	"burst":              func(s *limit.Spec, v value) { s.Burst = v.num },
	"scope":              func(s *limit.Spec, v value) { s.Scope, _ = limit.ParseScope(v.text) },
	"on_backend_failure": func(s *limit.Spec, v value) { s.OnBackendFailure, _ = limit.ParseFailureMode(v.text) },
	"fallback_ratio":     func(s *limit.Spec, v value) { s.FallbackRatio = v.ratio },
	"charge_denied":      func(s *limit.Spec, v value) { s.ChargeDenied = v.flag },
	"lease":              func(s *limit.Spec, v value) { s.Lease = v.flag },
	"lease_waste":        func(s *limit.Spec, v value) { s.LeaseWaste = v.ratio },
}

// findRow returns the row of a field, or nil.
func findRow(name string) *row {
	for i := range schema {
		if schema[i].name == name {
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
			names = append(names, r.name)
		}
	}
	return names
}

// Nearest returns the name of which s could be a misspelling, or "".
func Nearest(s string, names []string) string {
	if len(s) > 64 {
		return ""
	}
	best, found := 1+max(2, len(s)/3), ""
	for _, name := range names {
		d := levenshtein.ComputeDistance(strings.ToLower(s), name)
		if d < best && 2*d <= len(name) {
			best, found = d, name
		}
	}
	return found
}

// OneOf returns names as a choice, with the name of which s could be a misspelling.
func OneOf(s string, names []string) string {
	if near := Nearest(s, names); near != "" {
		return joinOr(names) + "; did you mean " + near + "?"
	}
	return joinOr(names)
}

func joinOr(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
