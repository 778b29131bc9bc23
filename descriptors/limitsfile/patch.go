package limitsfile

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

// MaxPatchBytes bounds the JSON of a Patch.
const MaxPatchBytes = 64 << 10

// Patch is the change that an override makes to one descriptor. It is immutable.
type Patch struct {
	// Expires is when the override ends; the zero Time means never.
	Expires time.Time

	file   string // shown in problems
	fields *object
	items  []*object // of rate_limits; nil if there is none
}

// ParsePatch reads a patch from a JSON object. target is shown in problems. The object
// has fields of rate_limit; or rate_limits, a list with such fields for each limit of the
// descriptor; factor, which multiplies requests_per_unit and burst; shadow_mode; and
// expires_at, a time in RFC 3339. The error is Problems.
func ParsePatch(target string, value []byte) (*Patch, error) {
	p := &Patch{file: patchFile(target)}
	d := newDocument(p.file, Options{})
	if root := d.json(value); root != nil {
		p.read(d, root)
	}
	if all := d.all(); len(all) > 0 {
		return nil, all
	}
	return p, nil
}

// PatchProblem returns a problem of the override of target.
func PatchProblem(target, path, reason string) Problem {
	return Problem{File: patchFile(target), Path: path, Reason: reason}
}

// patchFile returns what stands in problems for the file of an override.
func patchFile(target string) string {
	const longest = 200 // bytes of the target
	name := Printable(target)
	if len(name) > longest {
		name = strings.ToValidUTF8(name[:longest], "") + "…"
	}
	return "override " + name
}

// all returns errors and warnings: nothing in an override is only a warning.
func (d *document) all() Problems { return problems(append(d.errs, d.warns...)) }

// json reads a JSON object. It returns nil after reporting a mistake.
func (d *document) json(value []byte) *yaml.Node {
	if len(value) > MaxPatchBytes {
		d.errorf(nil, nil, "value is %d bytes; maximum is %d", len(value), MaxPatchBytes)
		return nil
	}
	if !json.Valid(value) || !utf8.Valid(value) {
		d.errorf(nil, nil, "%s", `value is not JSON; an example is {"requests_per_unit": 100, "expires_at": "2030-01-31T12:00:00Z"}`)
		return nil
	}
	root := readJSON(value)
	if root.Kind != yaml.MappingNode {
		d.errorf(root, nil, "override: got %s, want a JSON object", display(root))
		return nil
	}
	return root
}

// read takes the fields of root into p.
func (p *Patch) read(d *document, root *yaml.Node) {
	p.fields = d.object(overrideLevel, nil, root)
	if v := p.fields.field("expires_at"); v != nil && !v.invalid {
		var err error
		if p.Expires, err = time.Parse(time.RFC3339, v.text); err != nil {
			d.errorf(v.node, nil, "expires_at: got %s, want a time such as 2030-01-31T12:00:00Z", display(v.node))
		}
	}
	if list := p.fields.field("rate_limits"); list != nil && !list.invalid {
		p.items = []*object{}
		items := d.items(list, nil)
		if len(items) > maxLimits {
			d.errorf(list.node, nil, "rate_limits has %d items; maximum is %d", len(items), maxLimits)
			return
		}
		for _, item := range items {
			p.items = append(p.items, d.object(patchLevel, nil, item))
		}
		if f := p.fields.restrict(patchLevel); len(f.fields) > 0 {
			d.errorf(f.fields[0].node, nil, "%s is beside rate_limits; put it into the items of rate_limits", f.fields[0].row.name)
		}
	} else if len(d.all()) == 0 && (len(p.fields.fields) == 0 || len(p.fields.fields) == 1 && p.fields.field("expires_at") != nil) {
		d.errorf(root, nil, "override changes nothing; want %s", joinOr(fieldsAt(overrideLevel)))
	}
	for _, o := range append(slices.Clip(p.items), p.fields) {
		if v := o.field("unit"); v != nil && !v.invalid {
			d.unit(new(limit.Spec), nil, v)
		}
		for _, name := range []string{"requests_per_unit", "burst", "unlimited"} {
			if v := o.field(name); v != nil && o.field("factor") != nil {
				d.errorf(v.node, nil, "factor and %s are both given; want one of them", name)
			}
		}
	}
}

// only returns o with those of its fields that can stand at l.
func (o *object) restrict(l level) *object {
	some := &object{node: o.node}
	for _, v := range o.fields {
		if v.row.levels&l != 0 {
			some.fields = append(some.fields, v)
		}
	}
	return some
}

// Apply returns a copy of old with the changes of p, which is in domain. path is shown
// in problems.
func (p *Patch) Apply(domain *Domain, path string, old *Descriptor) (*Descriptor, Problems) {
	d := newDocument(p.file, Options{})
	d.domain = domain
	changed := *old
	changed.Limits = p.limits(d, old.Limits)
	if v := p.fields.field("shadow_mode"); v != nil {
		changed.ShadowMode = v.flag
	}
	all := d.all()
	for i := range all {
		all[i].Path = path
	}
	if len(all) > 0 {
		return nil, all
	}
	return &changed, nil
}

// limits returns old with the changes of p. It returns nil after reporting a mistake.
func (p *Patch) limits(d *document, old []*Limit) []*Limit {
	items := p.items
	if items == nil {
		o := p.fields.restrict(patchLevel)
		if len(old) > 1 {
			if v := o.ambiguousField(); v != nil {
				d.errorf(v.node, nil, "the descriptor has %d limits; put %s into rate_limits, a list with an item for each limit ({} keeps a limit as it is)", len(old), v.row.name)
				return nil
			}
		}
		for range max(len(old), 1) {
			items = append(items, o)
		}
	}
	if len(old) > 0 && len(items) != len(old) {
		d.errorf(p.fields.nodeOf("rate_limits"), nil, "rate_limits: got %d items, want %d, one for each limit of the descriptor ({} keeps a limit as it is)", len(items), len(old))
		return nil
	}
	var changed []*Limit
	for i, o := range items {
		var before *Limit
		if i < len(old) {
			before = old[i]
		}
		l := d.patch(o, before)
		if l == nil {
			return nil
		}
		if other := sameCounter(changed, l); other != nil {
			d.errorf(o.node, nil, "%s would have the algorithm, window and scope of %s; they would share one counter", l.Limit, other.Limit)
			return nil
		}
		changed = append(changed, l)
	}
	return changed
}

// ambiguousField returns a field of a patch that can't change all limits alike, or nil.
func (o *object) ambiguousField() *value {
	fieldsForAll := []string{"factor", "enabled", "charge_denied", "scope", "on_backend_failure", "fallback_ratio"}
	for i := range o.fields {
		if !slices.Contains(fieldsForAll, o.fields[i].row.name) {
			return &o.fields[i]
		}
	}
	return nil
}

// patch returns old, nil for no limit, with the changes of o. It returns nil after
// reporting a mistake.
func (d *document) patch(o *object, old *Limit) *Limit {
	spec := old.spec()
	hasNumber := o.field("requests_per_unit") != nil || o.field("factor") != nil || o.field("unlimited") != nil && !o.flag("unlimited")
	switch {
	case spec == nil && o.field("factor") != nil:
		d.errorf(o.nodeOf("factor"), nil, "factor: the descriptor has no number to multiply")
		return nil
	case old == nil && len(o.fields) == 0:
		d.errorf(o.node, nil, "the descriptor has no limit to change; give unit and requests_per_unit to set one")
		return nil
	case old == nil:
		return d.limit(nil, o)
	case o.flag("unlimited"), spec == nil && hasNumber:
		l := d.limit(nil, o).inherit(o, old)
		if l != nil && l.Unlimited {
			l.replaced = spec
		}
		return l
	}
	l := *old
	if v := o.field("name"); v != nil {
		l.Name = v.text
	}
	if v := o.field("enabled"); v != nil {
		l.Enabled = v.flag
	}
	if o.field("replaces") != nil {
		l.Replaces = nil
		d.replaces(nil, o, &l)
	}
	if l.Unlimited && !hasNumber {
		return l.orNil(d.unlimited(nil, o))
	}
	l.Unlimited, l.replaced = false, nil
	changed, ok := d.patchSpec(o, *spec)
	return l.orNil(ok && d.derive(&l, nil, o, changed))
}

// inherit copies enabled, replaces and name from old to l, unless o sets them.
func (l *Limit) inherit(o *object, old *Limit) *Limit {
	if l == nil {
		return nil
	}
	if o.field("enabled") == nil {
		l.Enabled = old.Enabled
	}
	if o.field("replaces") == nil {
		l.Replaces = old.Replaces
	}
	if o.field("name") == nil {
		l.Name = old.Name
	}
	return l
}

// patchSpec returns old with the changes of o. If o changes the algorithm, fields that
// o leaves out take the new algorithm's defaults, unless old had another value.
func (d *document) patchSpec(o *object, old limit.Spec) (changed limit.Spec, ok bool) {
	changed, ok = old, true
	setFields(&changed, o.field)
	if changed.Algorithm != old.Algorithm {
		if o.field("charge_denied") == nil && old.ChargeDenied == old.Algorithm.DefaultChargeDenied() {
			changed.ChargeDenied = changed.Algorithm.DefaultChargeDenied()
		}
		if o.field("burst") == nil && !changed.Algorithm.UsesBurst() {
			changed.Burst = 0
		}
	}
	if v := o.field("unit"); v != nil {
		ok = d.unit(&changed, nil, v)
	}
	if v := o.field("factor"); v != nil {
		for _, count := range []*uint32{&changed.Requests, &changed.Burst} {
			product := math.Round(float64(*count) * v.ratio)
			if product > math.MaxUint32 {
				d.errorf(v.node, nil, "factor: the product with %d is over 4294967295", *count)
				return changed, false
			}
			if *count > 0 {
				*count = uint32(max(product, 1))
			}
		}
	}
	return changed, ok
}
