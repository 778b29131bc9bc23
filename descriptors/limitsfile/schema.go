package limitsfile

import (
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/seed-81f232ab/rls/limit"
)

// level is where in a limits file, or in an override, a field can stand; a set of
// them as bits.
type level uint8

const (
	atRoot level = 1 << iota
	atDescriptor
	atRateLimit
	atReplaces
	atDefaults
	atOverride // its root
	atPatch    // an item of its rate_limits

	inOverride = atOverride | atPatch
	inFile     = ^inOverride

	// inLimit is where the fields of a limit can stand.
	inLimit = atRateLimit | inOverride
)

// kin is the levels of the kind of text that l is in.
func (l level) kin() level {
	if l&inOverride != 0 {
		return inOverride
	}
	return inFile
}

var levelNames = []struct {
	level level
	name  string
}{
	{atRoot, "the root of the file"},
	{atDescriptor, "the descriptor"},
	{atRateLimit, "rate_limit"},
	{atReplaces, "an item of replaces"},
	{atDefaults, "defaults"},
	{atOverride, "the override"},
	{atPatch, "an item of rate_limits"},
}

// String lists the levels in words.
func (l level) String() string {
	var names []string
	for _, n := range levelNames {
		if l&n.level != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, " or ")
}

// kind is what a field can hold. Every kind allows null, which means absent.
type kind uint8

const (
	textKind     kind = iota // any scalar but a float, as it is written
	flagKind                 // a boolean
	countKind                // 0 to 2^32-1
	positiveKind             // 1 to 2^32-1
	ratioKind                // over 0, up to 1
	factorKind               // over 0, up to maxFactor
	choiceKind               // one of the row's choices
	listKind                 // a list of mappings
	objectKind               // a mapping
	freeKind                 // a mapping of anything
)

// row describes one field.
type row struct {
	name    string
	kind    kind
	at      level
	ours    bool // unknown to envoyproxy/ratelimit
	choices []string
}

// maxFactor bounds by how much an override can multiply a limit.
const maxFactor = 1_000_000

// schema is every field of limits files and overrides. Of our own, all but unit_multiplier
// make sense as defaults: a limit's window should be readable where the limit is.
var schema = [...]row{
	{name: "domain", kind: textKind, at: atRoot},
	{name: "defaults", kind: objectKind, at: atRoot, ours: true},
	{name: "descriptors", kind: listKind, at: atRoot | atDescriptor},

	{name: "key", kind: textKind, at: atDescriptor},
	{name: "value", kind: textKind, at: atDescriptor},
	{name: "rate_limit", kind: objectKind, at: atDescriptor},
	{name: "rate_limits", kind: listKind, at: atDescriptor | atOverride, ours: true},
	{name: "shadow_mode", kind: flagKind, at: atDescriptor | atOverride},
	{name: "quota_mode", kind: flagKind, at: atDescriptor},
	{name: "detailed_metric", kind: flagKind, at: atDescriptor},
	{name: "value_to_metric", kind: flagKind, at: atDescriptor},
	{name: "share_threshold", kind: flagKind, at: atDescriptor},
	{name: "metadata", kind: freeKind, at: atDescriptor},

	{name: "unit", kind: textKind, at: inLimit},
	{name: "requests_per_unit", kind: countKind, at: inLimit},
	{name: "unlimited", kind: flagKind, at: inLimit},
	{name: "name", kind: textKind, at: inLimit | atReplaces},
	{name: "replaces", kind: listKind, at: inLimit},

	{name: "unit_multiplier", kind: positiveKind, at: inLimit, ours: true},
	{name: "algorithm", kind: choiceKind, at: inLimit | atDefaults, ours: true, choices: algorithmNames()},
	{name: "burst", kind: positiveKind, at: inLimit | atDefaults, ours: true},
	{
		name: "scope", kind: choiceKind, at: inLimit | atDefaults, ours: true,
		choices: []string{limit.Global.String(), limit.Instance.String()},
	},
	{
		name: "on_backend_failure", kind: choiceKind, at: inLimit | atDefaults, ours: true,
		choices: []string{limit.FailLocal.String(), limit.FailAllow.String(), limit.FailDeny.String()},
	},
	{name: "fallback_ratio", kind: ratioKind, at: inLimit | atDefaults, ours: true},
	{name: "charge_denied", kind: flagKind, at: inLimit | atDefaults, ours: true},
	{name: "enabled", kind: flagKind, at: inLimit | atDefaults, ours: true},

	{name: "factor", kind: factorKind, at: inOverride, ours: true},
	{name: "expires_at", kind: textKind, at: atOverride, ours: true},
}

func algorithmNames() []string {
	var names []string
	for _, a := range limit.Algorithms() {
		names = append(names, a.String())
	}
	return names
}

// rowNamed finds a field by its name.
func rowNamed(name string) *row {
	for i := range schema {
		if schema[i].name == name {
			return &schema[i]
		}
	}
	return nil
}

// fieldsAt lists the fields that can stand at l.
func fieldsAt(l level) []string {
	var names []string
	for _, r := range schema {
		if r.at&l != 0 {
			names = append(names, r.name)
		}
	}
	return names
}

// nearest is the name among names that a slip of the pen could have made s of,
// "" if none is near.
func nearest(s string, names []string) string {
	if len(s) > 64 {
		return ""
	}
	best, found := 1+max(2, len(s)/3), ""
	for _, name := range names {
		d := levenshtein.ComputeDistance(strings.ToLower(s), name)
		if d < best && d < len(name) {
			best, found = d, name
		}
	}
	return found
}

// OneOf returns the advice where s is none of names.
func OneOf(s string, names []string) string {
	if near := nearest(s, names); near != "" {
		return orList(names) + "; did you mean " + near + "?"
	}
	return orList(names)
}

func orList(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
