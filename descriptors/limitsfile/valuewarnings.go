package limitsfile

import (
	"net/netip"
	"regexp/syntax"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// warnValue warns about a value or a condition of desc that surely matches less than its author
// meant.
func (d *document) warnValue(desc *Descriptor, pos *place, o *object) {
	if key := o.field("key"); hasOuterSpace(key.Text) {
		d.warnf(key.node, pos, "key: got %q with spaces around it, which are part of the key; remove them", key.Text)
	}
	if v := o.field("value"); v.valid() && desc.Condition == nil && v.Text != "" {
		d.warnText(desc.Key, "value", v.Text, v.node, pos)
	}
	c := desc.Condition
	if c == nil {
		return
	}
	inner := o
	if not := o.field("not"); not.valid() {
		inner = &object{node: not.node}
		for _, n := range not.mappings {
			n = fields.Resolve(n)
			for i := 0; i+1 < len(n.Content); i += 2 {
				if row := findRow(n.Content[i].Value); row != nil {
					inner.fields = append(inner.fields, value{row: row, node: fields.Resolve(n.Content[i+1])})
				}
			}
		}
	}
	if v := inner.field("cidr"); v.given() && desc.Key == "masked_remote_address" {
		d.warnf(v.node, pos, "cidr matches no value of masked_remote_address, which is a network and no address; want in, or the key remote_address")
	}
	if v := inner.field("in"); v.given() && v.node.Kind == yaml.SequenceNode {
		for _, n := range v.node.Content {
			if n = fields.Resolve(n); isAddressKey(desc.Key) || hasOuterSpace(n.Value) {
				d.warnText(desc.Key, "entry of in", n.Value, n, pos)
			}
		}
	}
	if v := inner.field("regex"); v.given() && c.MatchesNothing() {
		d.warnf(v.node, pos, "the condition %s matches no value; correct the expression, or remove the descriptor", c)
	}
}

func hasOuterSpace(text string) bool { return len(text) != len(strings.TrimSpace(text)) }

// isAddressKey reports whether Envoy fills key with an address or a network.
func isAddressKey(key string) bool { return key == "remote_address" || key == "masked_remote_address" }

// warnText warns about a value in a field.
func (d *document) warnText(key, field, text string, n *yaml.Node, pos *place) {
	prefix, prefixErr := netip.ParsePrefix(text)
	switch {
	case hasOuterSpace(text):
		d.warnf(n, pos, "%s: got %q with spaces around it, which are part of the value; remove them", field, text)
	case strings.Contains(text, "*") && field == "value" && !looksLikeExpression(text):
	case key == "masked_remote_address":
		d.warnNetwork(field, text, prefix, prefixErr == nil, n, pos)
	case prefixErr == nil && field == "value":
		d.warnf(n, pos, "value: got %s, which matches this text only; want cidr: [%s] for its addresses, or in: [%s] for the text", text, prefix.Masked(), text)
	case looksLikeExpression(text) && field == "value":
		d.warnf(n, pos, "value: got %s, which is no regular expression here; want regex: '%s', or in: ['%s'] for the text", fields.Printable(text), fields.Printable(text), fields.Printable(text))
	case key == "remote_address":
		d.warnAddress(field, text, n, pos)
	}
}

// warnNetwork warns about a value that masked_remote_address never has.
func (d *document) warnNetwork(field, text string, prefix netip.Prefix, isNetwork bool, n *yaml.Node, pos *place) {
	switch {
	case !isNetwork:
		d.warnf(n, pos, "%s: got %s, but masked_remote_address is a network; want one such as 10.0.0.0/8", field, fields.Printable(text))
	case prefix.Masked().String() != text:
		d.warnf(n, pos, "%s: got %s, which Envoy never sends; want %s", field, text, prefix.Masked())
	}
}

// warnAddress warns about a value that remote_address never has.
func (d *document) warnAddress(field, text string, n *yaml.Node, pos *place) {
	switch addr, err := netip.ParseAddr(text); {
	case err != nil:
		d.warnf(n, pos, "%s: got %s, but remote_address is an IP address; want one such as 10.0.0.1, or cidr for a network", field, fields.Printable(text))
	case addr.String() != text:
		d.warnf(n, pos, "%s: got %s, which Envoy never sends; want %s", field, text, addr)
	}
}

// expressionParts are texts that a regular expression has, and that a value hardly has.
var expressionParts = []string{`\d`, `\w`, `\s`, `\.`, "[0-9]", "[a-z]", "[A-Z", "[^", "(?", ".+"}

// looksLikeExpression reports whether text is a regular expression rather than a value.
func looksLikeExpression(text string) bool {
	isLikely := strings.HasPrefix(text, "^") || strings.HasSuffix(text, "$") && strings.ContainsAny(text, "*+[(|")
	if !isLikely && strings.ContainsAny(text, `\[(+`) {
		for _, part := range expressionParts {
			isLikely = isLikely || strings.Contains(text, part)
		}
	}
	if !isLikely || len(text) > condition.MaxEntryBytes {
		return false
	}
	_, err := syntax.Parse(text, syntax.Perl)
	return err == nil
}

// warnLimits warns about limits of desc that never deny, because another limit is tighter.
func (d *document) warnLimits(desc *Descriptor, pos *place) {
	for i, l := range desc.Limits {
		for j, other := range desc.Limits {
			if i != j && other.isTighter(l) && (!l.isTighter(other) || j < i) {
				d.warns = append(d.warns, pendingProblem{fields.Problem{
					File: d.file, Line: l.Line,
					Reason: l.String() + " never denies, because " + other.String() + " is always tighter; remove one of them, or change a number",
				}, pos})
				break
			}
		}
	}
}

// isTighter reports whether l certainly denies each request that other denies.
func (l *Limit) isTighter(other *Limit) bool {
	if l.Unlimited || other.Unlimited || !l.Enabled || !other.Enabled || l.Name != "" || len(l.Replaces)+len(other.Replaces) > 0 {
		return false // a name can be replaced
	}
	a, b := l.Spec, other.Spec
	if a.Timezone != "" || b.Timezone != "" {
		return false // days and months of a calendar have no fixed length
	}
	if a.Algorithm != b.Algorithm || a.Scope != b.Scope || a.OnBackendFailure != b.OnBackendFailure || a.FallbackRatio != b.FallbackRatio || a.Lease || b.Lease {
		return false
	}
	long, short := l.Period(), other.Period() // of the tighter limit and of the other limit
	switch a.Algorithm {
	case limit.FixedWindow:
		if long >= short {
			return long%short == 0 && a.Requests <= b.Requests && (a.ChargeDenied || !b.ChargeDenied)
		}
		return short%long == 0 && !b.ChargeDenied && uint64(a.Requests)*uint64(short/long) <= uint64(b.Requests)
	case limit.SlidingLog:
		if a.ChargeDenied || b.ChargeDenied {
			return false
		}
		windows := uint64((short + long - 1) / long)
		return uint64(a.Requests)*windows <= uint64(b.Requests)
	case limit.TokenBucket:
		// Rates are compared as fractions of requests and periods.
		return !a.ChargeDenied && !b.ChargeDenied && l.Capacity() <= other.Capacity() &&
			float64(a.Requests)/float64(long) <= float64(b.Requests)/float64(short)
	}
	return false
}
