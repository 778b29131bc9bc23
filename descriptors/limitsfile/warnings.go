package limitsfile

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp/syntax"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// warnValue warns about a value or a condition of desc that certainly matches fewer values than the author wants.
func (d *document) warnValue(desc *Descriptor, pos *place, o *object) {
	if key := o.field("key"); hasOuterSpace(key.Text) {
		d.warnf(key.node, pos, "key: got %q with spaces around it, which are part of the key; remove them", key.Text)
	} else if name, value, hasValue := strings.Cut(key.Text, "="); hasValue && !o.field("value").isPresent() {
		d.warnf(key.node, pos, "key: got %s, which no request with the key %s has; want key: %[2]s and value: %s", fields.Printable(key.Text), fields.Printable(name), fields.Printable(value))
	}
	if v := o.field("value"); v.isValid() && desc.Condition == nil && v.Text != "" {
		d.warnText(desc.Key, "value", v.Text, v.node, pos)
	}
	if desc.Condition == nil {
		return
	}
	conditionObject := o
	if not := o.field("not"); not.isValid() {
		conditionObject = d.readObject(notObject, pos, not.mappings...)
	}
	if v := conditionObject.field("cidr"); v.isPresent() && desc.Key == "masked_remote_address" {
		d.warnf(v.node, pos, "cidr matches no value of masked_remote_address, which is a network and no address; want in, or the key remote_address")
	}
	if v := conditionObject.field("prefix"); strings.HasSuffix(v.Text, "*") || looksLikeExpression(v.Text) {
		d.warnf(v.node, pos, "prefix: got %s, whose special characters stand for themselves; want the start of the values without them, or regex", fields.Printable(v.Text))
	}
	if v := conditionObject.field("in"); v.isPresent() && v.node.Kind == yaml.SequenceNode {
		for _, n := range v.node.Content {
			if n = fields.Resolve(n); desc.Key == "remote_address" || desc.Key == "masked_remote_address" || hasOuterSpace(n.Value) {
				d.warnText(desc.Key, "entry of in", n.Value, n, pos)
			}
		}
	}
}

func hasOuterSpace(text string) bool { return len(text) != len(strings.TrimSpace(text)) }

// warnText warns about text, a value or an entry of a list, if its author probably means another text or a condition. field
// names the text in the warning.
func (d *document) warnText(key, field, text string, n *yaml.Node, pos *place) {
	prefix, isPrefix := parsePrefix(text)
	switch {
	case hasOuterSpace(text):
		d.warnf(n, pos, "%s: got %q with spaces around it, which are part of the value; remove them", field, text)
	case strings.Contains(text, "*") && field == "value" && !looksLikeExpression(text):
	case key == "masked_remote_address" && !isPrefix:
		d.warnf(n, pos, "%s: got %s, but masked_remote_address is a network; want a network such as 10.0.0.0/8", field, fields.Printable(text))
	case key == "masked_remote_address" && prefix.Masked().String() != text:
		d.warnf(n, pos, "%s: got %s, which Envoy never sends; want %s", field, text, prefix.Masked())
	case key == "masked_remote_address":
	case isPrefix && field == "value":
		d.warnf(n, pos, "value: got %s, which matches this text only; want cidr: [%s] for its addresses, or in: [%s] for the text", text, prefix.Masked(), text)
	case looksLikeExpression(text) && field == "value":
		d.warnf(n, pos, "value: got %s, which is no regular expression here; want regex: '%s', or in: ['%s'] for the text", fields.Printable(text), fields.Printable(text), fields.Printable(text))
	case key == "remote_address":
		if addr, err := netip.ParseAddr(text); err != nil {
			d.warnf(n, pos, "%s: got %s, but remote_address is an IP address; want an address such as 10.0.0.1, or cidr for a network", field, fields.Printable(text))
		} else if addr.String() != text {
			d.warnf(n, pos, "%s: got %s, which Envoy never sends; want %s", field, text, addr)
		}
	}
}

// parsePrefix parses a network. Most values are not networks. The first byte often shows this without the cost of an error.
func parsePrefix(text string) (prefix netip.Prefix, ok bool) {
	if text == "" || strings.IndexByte("0123456789abcdefABCDEF:", text[0]) < 0 {
		return prefix, false
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix, err == nil
}

// expressionParts are texts that are common in regular expressions and rare in values.
var expressionParts = []string{`\d`, `\w`, `\s`, `\.`, "[0-9]", "[a-z]", "[A-Z", "[^", "(?", ".+", "/.*", "|"}

func looksLikeExpression(text string) bool {
	isLikely := strings.HasPrefix(text, "^") || strings.HasPrefix(text, ".*") || strings.HasSuffix(text, "$") && strings.ContainsAny(text, "*+[(|") ||
		slices.ContainsFunc(expressionParts, func(part string) bool { return strings.Contains(text, part) })
	if !isLikely || len(text) > condition.MaxEntryBytes {
		return false
	}
	_, err := syntax.Parse(text, syntax.Perl)
	return err == nil
}

// warnLimits warns about a limit of desc that never denies, because another limit is tighter.
func (d *document) warnLimits(desc *Descriptor, pos *place) {
	for i, l := range desc.Limits {
		for j, other := range desc.Limits {
			if i != j && other.isTighterThan(l) && (!l.isTighterThan(other) || j < i) {
				d.warnf(&yaml.Node{Line: l.Line}, pos, "%s never denies, because %s is always tighter; remove one of them, or change a number", l, other)
				break
			}
		}
	}
}

// isTighterThan reports whether l certainly denies each request that other denies.
func (l *Limit) isTighterThan(other *Limit) bool {
	if l.Unlimited || other.Unlimited || !l.Enabled || !other.Enabled || l.Name != "" || len(l.Replaces)+len(other.Replaces) > 0 {
		return false // another limit can replace a limit with a name
	}
	spec, otherSpec := l.Spec, other.Spec
	if spec.Timezone != "" || otherSpec.Timezone != "" {
		return false // days and months of a calendar have no fixed length
	}
	if spec.Algorithm != otherSpec.Algorithm || spec.Scope != otherSpec.Scope || spec.OnBackendFailure != otherSpec.OnBackendFailure || spec.FallbackRatio != otherSpec.FallbackRatio || spec.Lease || otherSpec.Lease {
		return false
	}
	period, otherPeriod := l.Period(), other.Period()
	switch spec.Algorithm {
	case limit.FixedWindow:
		if period >= otherPeriod {
			return period%otherPeriod == 0 && spec.Requests <= otherSpec.Requests && (spec.ChargeDenied || !otherSpec.ChargeDenied)
		}
		return otherPeriod%period == 0 && !otherSpec.ChargeDenied && uint64(spec.Requests)*uint64(otherPeriod/period) <= uint64(otherSpec.Requests)
	case limit.SlidingLog:
		if spec.ChargeDenied || otherSpec.ChargeDenied {
			return false
		}
		windows := uint64((otherPeriod + period - 1) / period)
		return uint64(spec.Requests)*windows <= uint64(otherSpec.Requests)
	case limit.TokenBucket:
		// Rates are compared as fractions of requests and periods.
		return !spec.ChargeDenied && !otherSpec.ChargeDenied && l.Capacity() <= other.Capacity() &&
			float64(spec.Requests)/float64(period) <= float64(otherSpec.Requests)/float64(otherPeriod)
	}
	return false
}

// maxComparedSiblings bounds the earlier siblings that warnUnreachable compares with a descriptor.
const maxComparedSiblings = 100

// warnUnreachable warns about descriptors of list that an earlier wildcard hides. trail has the descriptors from the root
// of the domain to the parent of list.
func (r *reader) warnUnreachable(domain string, trail []*Descriptor, list []*Descriptor) {
	var wildcards []wildcard
	for _, d := range list {
		if (d.HasWildcardKey || d.HasWildcardValue) && len(wildcards) < maxComparedSiblings {
			wildcards = append(wildcards, wildcard{d, NewPattern(d.Key), NewPattern(cmp.Or(d.Value, "*"))})
		}
	}
	for _, d := range list {
		path := append(slices.Clip(trail), d)
		if hidingDescriptor := hidingWildcard(wildcards, d); hidingDescriptor != nil {
			r.warnf(d.File, d.Line, Path(domain, path), "no request reaches this descriptor, because %s at %s matches first; remove one of them, or change the order or the value",
				hidingDescriptor.Label(), fields.FileLine(hidingDescriptor.File, hidingDescriptor.Line))
		}
		r.warnUnreachable(domain, path, d.Descriptors)
	}
}

// warnZeroLimits warns about a domain in which most limits admit nothing. A single limit of 0 is usually meant.
func (r *reader) warnZeroLimits(domain *Domain) {
	zeroCount, count := 0, 0
	forEachLimit(domain.Descriptors, func(d *Descriptor, l *Limit) {
		if l.Enabled && !l.Unlimited && !d.ShadowMode {
			count++
			if l.Spec.Requests == 0 {
				zeroCount++
			}
		}
	})
	if count > 1 && 2*zeroCount > count {
		r.warnf(domain.File, domain.Line, domain.Name, "%d of %d limits are 0, so that most requests are denied; check requests_per_unit, or split the domain if that is meant", zeroCount, count)
	}
}

// warnReplaces warns about names in replaces that no limit of domain has.
func (r *reader) warnReplaces(domain *Domain) {
	names := map[string]bool{}
	forEachLimit(domain.Descriptors, func(_ *Descriptor, l *Limit) { names[l.Name] = true })
	forEachLimit(domain.Descriptors, func(d *Descriptor, l *Limit) {
		for _, name := range l.Replaces {
			if !names[name] {
				r.warnf(d.File, l.Line, domain.Name, "replaces: no limit of the domain has the name %s", fields.Printable(name))
			}
		}
	})
}

func forEachLimit(list []*Descriptor, f func(*Descriptor, *Limit)) {
	for _, d := range list {
		for _, l := range d.Limits {
			f(d, l)
		}
		forEachLimit(d.Descriptors, f)
	}
}

// warnf adds a warning that is found after the documents were read.
func (r *reader) warnf(file string, line int, path, format string, args ...any) {
	if len(r.set.Warnings) < maxProblems {
		r.set.Warnings = append(r.set.Warnings, fields.Problem{File: file, Line: line, Path: path, Reason: fmt.Sprintf(format, args...)})
	}
}

type wildcard struct {
	*Descriptor
	key, value Pattern
}

// hidingWildcard returns the first wildcard before d that matches all requests of d, or nil.
func hidingWildcard(wildcards []wildcard, d *Descriptor) *Descriptor {
	if d.Condition != nil || !d.HasWildcardKey && !d.HasWildcardValue && d.Value != "" {
		return nil // a condition and an exact value come first
	}
	for i := range wildcards {
		w := &wildcards[i]
		if w.Descriptor == d {
			return nil
		}
		// If a pattern matches the text of another pattern, it matches all texts that the other pattern matches,
		// because only a * can match a *.
		if w.key.Match(d.Key) && (d.Value == "" && w.value.MatchesAll() || d.Value != "" && w.value.Match(d.Value)) {
			return w.Descriptor
		}
	}
	return nil
}
