package descriptors

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/limit"
)

// MaxOverrideBytes bounds the value of an override.
const MaxOverrideBytes = 64 << 10

// Override changes the limits of one descriptor, or of one value that a descriptor
// matches, whatever the limits files say. It is immutable.
type Override struct {
	Target Target

	// Expires is when it ends; the zero Time is never.
	Expires time.Time

	fields *object
	items  []*object // of rate_limits; nil if there is none
}

// ParseOverride reads an override. value is a JSON object of what changes: fields
// of rate_limit, or rate_limits, a list of such, one for each limit of the
// descriptor; factor, which multiplies requests_per_unit and burst; shadow_mode;
// and expires_at, a time as in RFC 3339. The error is Problems. Whether it fits the
// limits in force is told by With.
func ParseOverride(target string, value []byte) (*Override, error) {
	d := overrideDocument(target)
	o := &Override{}
	var err error
	if o.Target, err = ParseTarget(target); err != nil {
		d.errorf(nil, nil, "%s", err)
	}
	if root := d.json(value); root != nil {
		o.read(d, root)
	}
	if all := d.all(); len(all) > 0 {
		return nil, all
	}
	return o, nil
}

// OverrideEnded tells whether value is of an override that has ended at t.
func OverrideEnded(value []byte, t time.Time) bool {
	var v struct {
		ExpiresAt time.Time `json:"expires_at"`
	}
	return json.Unmarshal(value, &v) == nil && !v.ExpiresAt.IsZero() && !t.Before(v.ExpiresAt)
}

func overrideDocument(target string) *document {
	const most = 200 // bytes of the target in messages
	name := printable(target)
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	return &document{file: "override " + name}
}

// all is what is wrong with an override: there is nothing to be lenient about.
func (d *document) all() Problems { return problems(append(d.errs, d.warns...)) }

// json reads a JSON object; nil if it is none.
func (d *document) json(value []byte) *yaml.Node {
	if len(value) > MaxOverrideBytes {
		d.errorf(nil, nil, "the value has %d bytes; %d are the most", len(value), MaxOverrideBytes)
		return nil
	}
	if !json.Valid(value) || !utf8.Valid(value) {
		d.errorf(nil, nil, "%s", `the value is not JSON; for example {"requests_per_unit": 100, "expires_at": "2030-01-31T12:00:00Z"}`)
		return nil
	}
	root := readJSON(value)
	if root.Kind != yaml.MappingNode {
		d.errorf(root, nil, "an override must be a JSON object, not %s", shown(root))
		return nil
	}
	return root
}

// read takes the fields of root into o.
func (o *Override) read(d *document, root *yaml.Node) {
	o.fields = d.object(atOverride, nil, root)
	if v := o.fields.field("expires_at"); v != nil && !v.bad {
		var err error
		if o.Expires, err = time.Parse(time.RFC3339, v.text); err != nil {
			d.errorf(v.node, nil, "expires_at %s is not a time such as 2030-01-31T12:00:00Z", shown(v.node))
		}
	}
	if list := o.fields.field("rate_limits"); list != nil && !list.bad {
		o.items = []*object{}
		items := d.items(list, nil)
		if len(items) > maxLimits {
			d.errorf(list.node, nil, "rate_limits has %d items; %d are the most", len(items), maxLimits)
			return
		}
		for _, item := range items {
			o.items = append(o.items, d.object(atPatch, nil, item))
		}
		if f := o.fields.only(atPatch); len(f.fields) > 0 {
			d.errorf(f.fields[0].node, nil, "%s stands beside rate_limits; put it into its items", f.fields[0].row.name)
		}
	} else if len(d.all()) == 0 && (len(o.fields.fields) == 0 || len(o.fields.fields) == 1 && o.fields.field("expires_at") != nil) {
		d.errorf(root, nil, "the override changes nothing; it can have %s", orList(fieldsAt(atOverride)))
	}
	for _, patch := range append(slices.Clip(o.items), o.fields) {
		if v := patch.field("unit"); v != nil && !v.bad {
			d.unit(new(limit.Spec), nil, v)
		}
		for _, name := range []string{"requests_per_unit", "burst", "unlimited"} {
			if v := patch.field(name); v != nil && patch.field("factor") != nil {
				d.errorf(v.node, nil, "factor and %s exclude each other", name)
			}
		}
	}
}

// only is o with those of its fields that can stand at l.
func (o *object) only(l level) *object {
	some := &object{node: o.node}
	for _, v := range o.fields {
		if v.row.at&l != 0 {
			some.fields = append(some.fields, v)
		}
	}
	return some
}

// change is what o makes of the limits was of descriptor n; nil if that can't be.
func (o *Override) change(d *document, n *node, was []*stated) []*stated {
	patches := o.items
	if patches == nil {
		patch := o.fields.only(atPatch)
		if len(was) > 1 {
			if v := patch.ambiguous(); v != nil {
				d.errorf(v.node, n, "the descriptor has %d limits, so that %s must be in rate_limits: a list with an item for each, {} for one that stays as it is", len(was), v.row.name)
				return nil
			}
		}
		for range max(len(was), 1) {
			patches = append(patches, patch)
		}
	}
	if len(was) > 0 && len(patches) != len(was) {
		d.errorf(o.fields.at("rate_limits"), n, "rate_limits must have an item for each limit of the descriptor, {} for one that stays as it is: %d, not %d", len(was), len(patches))
		return nil
	}
	var is []*stated
	for i, patch := range patches {
		var old *stated
		if i < len(was) {
			old = was[i]
		}
		l := d.patch(n, patch, old)
		if l == nil {
			return nil
		}
		if same := counterOf(is, l); same != nil {
			d.errorf(patch.node, n, "%s would be a limit of the same algorithm, window and scope as %s; they would share one counter", l.Limit, same.Limit)
			return nil
		}
		is = append(is, l)
	}
	return is
}

// ambiguous is a field of a patch that can't go for several limits alike.
func (o *object) ambiguous() *value {
	alike := []string{"factor", "enabled", "charge_denied", "scope", "on_backend_failure", "fallback_ratio"}
	for i := range o.fields {
		if !slices.Contains(alike, o.fields[i].row.name) {
			return &o.fields[i]
		}
	}
	return nil
}

// patch is the limit was, nil if there is none, with what o says; nil if that is
// wrong.
func (d *document) patch(n *node, o *object, was *stated) *stated {
	spec := was.spec()
	counts := o.field("requests_per_unit") != nil || o.field("factor") != nil || o.field("unlimited") != nil && !o.flag("unlimited")
	switch {
	case spec == nil && o.field("factor") != nil:
		d.errorf(o.at("factor"), n, "there is no number for factor to multiply")
		return nil
	case was == nil && len(o.fields) == 0:
		d.errorf(o.node, n, "the descriptor has no limit to change; give unit and requests_per_unit to set one")
		return nil
	case was == nil:
		return d.limit(n, o)
	case o.flag("unlimited"), spec == nil && counts:
		l := d.limit(n, o).inherit(o, was)
		if l != nil && l.Unlimited {
			l.under = spec
		}
		return l
	}
	held := *was.RateLimit
	l := &stated{RateLimit: &held, enabled: was.enabled, line: was.line, under: was.under}
	if v := o.field("name"); v != nil {
		l.Name = v.text
	}
	if v := o.field("enabled"); v != nil {
		l.enabled = v.flag
	}
	if o.field("replaces") != nil {
		l.Replaces = nil
		d.replaces(n, o, l.RateLimit)
	}
	if l.Unlimited && !counts {
		return l.orNil(d.unlimited(n, o))
	}
	l.Unlimited, l.under = false, nil
	is, ok := d.patchSpec(n, o, *spec)
	return l.orNil(ok && d.make(l.RateLimit, n, o, is))
}

// inherit gives l, which is made of o alone, what was has besides numbers.
func (l *stated) inherit(o *object, was *stated) *stated {
	if l == nil {
		return nil
	}
	if o.field("enabled") == nil {
		l.enabled = was.enabled
	}
	if o.field("replaces") == nil {
		l.Replaces = was.Replaces
	}
	if o.field("name") == nil {
		l.Name = was.Name
		if !l.Unlimited {
			l.hold(l.Limit)
		}
	}
	return l
}

// patchSpec is was with what o says. What follows from the algorithm unless it is
// stated follows a new one.
func (d *document) patchSpec(n *node, o *object, was limit.Spec) (is limit.Spec, ok bool) {
	is, ok = was, true
	fill(&is, o.field)
	if is.Algorithm != was.Algorithm {
		if o.field("charge_denied") == nil && was.ChargeDenied == was.Algorithm.DefaultChargeDenied() {
			is.ChargeDenied = is.Algorithm.DefaultChargeDenied()
		}
		if o.field("burst") == nil && !is.Algorithm.UsesBurst() {
			is.Burst = 0
		}
	}
	if v := o.field("unit"); v != nil {
		ok = d.unit(&is, n, v)
	}
	if v := o.field("factor"); v != nil {
		for _, count := range []*uint32{&is.Requests, &is.Burst} {
			more := math.Round(float64(*count) * v.ratio)
			if more > math.MaxUint32 {
				d.errorf(v.node, n, "factor makes %d more than 4294967295", *count)
				return is, false
			}
			if *count > 0 {
				*count = uint32(max(more, 1))
			}
		}
	}
	return is, ok
}
