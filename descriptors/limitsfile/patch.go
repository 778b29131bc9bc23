package limitsfile

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// MaxPatchBytes is the maximum size of the JSON of a Patch.
const MaxPatchBytes = 64 << 10

// Patch is the change that an override makes to one descriptor. It is immutable.
type Patch struct {
	Notes

	name  string    // the name of the override in problems, such as "override shop|tenant"
	root  *object   // the whole JSON object
	items []*object // the items of rate_limits; nil without rate_limits
}

// ParsePatch reads a patch from a JSON object (docs/overrides.md). value can also be a whole number, the new
// requests_per_unit. The error is Problems with the name of target.
func ParsePatch(target string, value []byte) (*Patch, error) {
	p := &Patch{name: nameInProblems("override", target)}
	if number := bytes.TrimSpace(value); isCount(number) {
		value = fmt.Appendf(nil, `{"requests_per_unit": %s}`, cmp.Or(string(bytes.TrimLeft(number, "0")), "0"))
	}
	var err error
	p.Notes, err = parseChange(p.name, overrideObject, value, `{"requests_per_unit": 100, "expires_at": "2030-01-31T12:00:00Z"}`, p.read)
	return p, err
}

// TargetProblem returns a problem of the override, rule or switch of a target.
func TargetProblem(kind, target, path, reason string) fields.Problem {
	return fields.Problem{File: nameInProblems(kind, target), Path: path, Reason: reason}
}

// problemsAt returns the errors and the warnings of d as problems of the descriptor at path. Both reject a change at run
// time.
func (d *document) problemsAt(path string) fields.Problems {
	list := sortedProblems(append(d.errors, d.warnings...))
	for i := range list {
		list[i].Path = path
	}
	return list
}

// readJSON reads a JSON object. If it reports a problem, it returns nil. example is a valid object that problems show.
func (d *document) readJSON(text []byte, example string) *yaml.Node {
	if len(text) > MaxPatchBytes {
		d.errorf(nil, nil, "value is %d bytes; maximum is %d", len(text), MaxPatchBytes)
		return nil
	}
	var v structpb.Value
	if err := protojson.Unmarshal(text, &v); err != nil {
		cause := strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
		d.errorf(nil, nil, "value is not JSON: %s; want an object such as %s", cause, example)
		return nil
	}
	root := yamlNode(v.AsInterface())
	if root.Kind != yaml.MappingNode {
		d.errorf(root, nil, "value: got %s, want a JSON object such as %s", fields.Display(root), example)
		return nil
	}
	return root
}

func isCount(text []byte) bool {
	const maxDigits = 20
	return len(text) > 0 && len(text) <= maxDigits && !bytes.ContainsFunc(text, func(r rune) bool { return r < '0' || r > '9' })
}

func (p *Patch) read(d *document, o *object) {
	p.root = o
	list := o.field("rate_limits")
	if list.isValid() {
		p.items = []*object{}
		for _, item := range d.limitItems(nil, list) {
			p.items = append(p.items, d.readObject(overrideItemObject, nil, item))
		}
		if otherFields := p.root.selectFieldsOf(overrideItemObject); len(otherFields.values) > 0 {
			d.errorf(otherFields.values[0].node, nil, "%s is beside rate_limits; put it into the items of rate_limits", otherFields.values[0].schema.Name)
		}
	} else if len(d.errors)+len(d.warnings) == 0 && !slices.ContainsFunc(p.root.values, func(v value) bool { return v.schema.objects != objectsWithNotes }) {
		changes := slices.DeleteFunc(fieldsOf(overrideObject), func(name string) bool { return findField(name).objects == objectsWithNotes })
		d.errorf(o.node, nil, "override changes nothing; want %s", fields.JoinOr(changes))
	}
	for _, o := range append(slices.Clip(p.items), p.root) {
		if v := o.field("unit"); v.isValid() {
			d.checkUnit(nil, v)
		}
		for _, name := range []string{"requests_per_unit", "burst", "unlimited"} {
			if v := o.field(name); v.isPresent() && o.field("factor").isPresent() {
				d.errorf(v.node, nil, "factor and %s are both given; want one of them", name)
			}
		}
	}
}

func (o *object) selectFieldsOf(t objectType) *object {
	values := slices.DeleteFunc(slices.Clone(o.values), func(v value) bool { return v.schema.objects&t == 0 })
	return &object{o.node, values}
}

// Apply returns a copy of original, a descriptor of domain, with the changes of p, or problems.
func (p *Patch) Apply(domain *Domain, path string, original *Descriptor) (*Descriptor, fields.Problems) {
	d := newDocument(p.name, newParseState(Options{}))
	d.domain = domain
	result := *original
	result.Limits = p.patchLimits(d, original.Limits)
	if v := p.root.field("shadow_mode"); v.isPresent() {
		result.ShadowMode = v.Flag
	}
	if v := p.root.field("enforce"); v.isPresent() {
		result.EnforcedPercent = v.Ratio
	}
	if result.rejectsReleases() {
		d.errorf(p.root.field("algorithm").node, nil, refundsFalseReason)
	}
	if reason := result.quotaProblem(); reason != "" && d.errorCount == 0 {
		d.errorf(p.root.node, nil, "%s", reason)
	}
	return &result, d.problemsAt(path)
}

// patchLimits returns oldLimits with the changes of p. If it reports a problem, it returns nil.
func (p *Patch) patchLimits(d *document, oldLimits []*Limit) []*Limit {
	items := p.items
	if items == nil {
		o := p.root.selectFieldsOf(overrideItemObject)
		if len(oldLimits) > 1 {
			if i := slices.IndexFunc(o.values, func(v value) bool { return !slices.Contains(fieldsOfSeveralLimits, v.schema.Name) }); i >= 0 {
				v := o.values[i]
				d.errorf(v.node, nil, "the descriptor has %d limits; put %s into rate_limits, a list with an item for each limit ({} keeps a limit as it is)", len(oldLimits), v.schema.Name)
				return nil
			}
		}
		items = slices.Repeat([]*object{o}, max(len(oldLimits), 1))
	}
	if len(oldLimits) == 0 {
		oldLimits = make([]*Limit, len(items))
	}
	if len(items) != len(oldLimits) {
		d.errorf(p.root.field("rate_limits").node, nil, "rate_limits: got %d items, want %d, one for each limit of the descriptor ({} keeps a limit as it is)", len(items), len(oldLimits))
		return nil
	}
	var newLimits []*Limit
	for i, o := range items {
		l := d.patchLimit(o, oldLimits[i])
		if d.errorCount > 0 {
			return nil
		}
		if other := limitWithSameCounter(newLimits, l); other != nil {
			d.errorf(o.node, nil, "%s would have the algorithm, window and scope of %s; they would share one counter", l.Limit, other.Limit)
			return nil
		}
		newLimits = append(newLimits, l)
	}
	return newLimits
}

// fieldsOfSeveralLimits has the names of the fields of a patch that can change all limits of a descriptor in the same way.
var fieldsOfSeveralLimits = []string{"factor", "enabled", "charge_denied", "scope", "on_backend_failure", "fallback_ratio", "lease", "lease_waste"}

// patchLimit returns oldLimit with the changes of o. oldLimit can be nil. If patchLimit reports a problem, the result has no meaning.
func (d *document) patchLimit(o *object, oldLimit *Limit) *Limit {
	factor, unlimited := o.field("factor"), o.field("unlimited")
	hasNumber := o.field("requests_per_unit").isPresent() || factor.isPresent() || unlimited.isPresent() && !unlimited.Flag
	var spec *limit.Spec // the old spec; nil if the descriptor has never had a limit with a number
	switch {
	case oldLimit == nil:
	case oldLimit.Unlimited:
		spec = oldLimit.specBeforeUnlimited
	default:
		spec = &oldLimit.Spec
	}
	switch {
	case spec == nil && factor.isPresent():
		d.errorf(factor.node, nil, "factor: the descriptor has no number to multiply")
		return nil
	case oldLimit == nil && len(o.values) == 0:
		d.errorf(o.node, nil, "the descriptor has no limit to change; give unit and requests_per_unit to set one")
		return nil
	case oldLimit == nil:
		l := d.readLimit(nil, o)
		if l != nil {
			l.setOverrideFields(o)
		}
		return l
	}
	l := *oldLimit
	if v := o.field("name"); v.isPresent() {
		l.Name = v.Text
	}
	if v := o.field("enabled"); v.isPresent() {
		l.Enabled = v.Flag
	}
	if o.field("replaces").isPresent() {
		l.Replaces = nil
		d.readReplaces(nil, o, &l)
	}
	switch {
	case unlimited.Flag:
		d.checkUnlimited(nil, o)
		l.Limit, l.Unlimited, l.specBeforeUnlimited = nil, true, spec
	case l.Unlimited && !hasNumber:
		d.checkUnlimited(nil, o)
	case spec == nil:
		l.Limit, l.Unlimited = d.newLimit(nil, o, d.readSpec(nil, o)), false
	default:
		l.Limit, l.Unlimited, l.specBeforeUnlimited = d.newLimit(nil, o, d.patchSpec(o, *spec)), false, nil
	}
	if d.errorCount == 0 {
		l.setOverrideFields(o)
	}
	return &l
}

func (d *document) patchSpec(o *object, oldSpec limit.Spec) limit.Spec {
	patchedSpec := d.domain.WithCalendar(changeSpec(oldSpec, o, nil))
	d.checkHolds(nil, o, patchedSpec)
	if patchedSpec.Unit == 0 && !patchedSpec.Algorithm.HasHolds() {
		d.errorf(o.field("algorithm").node, nil, "unit is missing; algorithm %s needs the unit of a window: %s", patchedSpec.Algorithm, fields.OneOf("", limit.UnitNames()))
		patchedSpec.Unit = limit.Second
	}
	factor := o.field("factor")
	for _, count := range []*uint32{&patchedSpec.Requests, &patchedSpec.Burst} {
		if !factor.isPresent() || *count == 0 {
			continue
		}
		product := math.Round(float64(*count) * factor.Ratio)
		if product > math.MaxUint32 {
			d.errorf(factor.node, nil, "factor: the product with %d is over 4294967295", *count)
			continue
		}
		*count = uint32(max(product, 1))
	}
	return patchedSpec
}
