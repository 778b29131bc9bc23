package spec

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// rule is a descriptor of a limits file.
type rule struct {
	key, value     string
	condition      string // cidr, in, prefix, regex or not-prefix; empty if the rule has a value, or neither
	operand        string // of the condition
	shareThreshold bool
	limits         []limit
	shadow, quota  bool
	noRefunds      bool
	maxHits        int64 // 0 if the rule has none
	children       []*rule
}

// entry is an entry of a descriptor.
type entry struct{ key, value string }

// yaml appends the rule to a limits file.
func (r *rule) yaml(b *strings.Builder, indent string) {
	line := func(format string, args ...any) { fmt.Fprintf(b, indent+"  "+format+"\n", args...) }
	fmt.Fprintf(b, "%s- key: %s\n", indent, r.key)
	if r.value != "" {
		line("value: '%s'", r.value)
	}
	switch r.condition {
	case "":
	case "cidr", "in":
		line("%s: [%s]", r.condition, r.operand)
	case "not-prefix":
		line("not: {prefix: '%s'}", r.operand)
	default:
		line("%s: '%s'", r.condition, r.operand)
	}
	for _, flag := range []struct {
		isSet bool
		text  string
	}{{r.shareThreshold, "share_threshold: true"}, {r.shadow, "shadow_mode: true"}, {r.quota, "quota_mode: true"}, {r.noRefunds, "refunds: false"}} {
		if flag.isSet {
			line("%s", flag.text)
		}
	}
	if r.maxHits > 0 {
		line("max_hits: %d", r.maxHits)
	}
	if len(r.limits) > 0 {
		line("rate_limits:")
		for i := range r.limits {
			line("- %s", r.limits[i].yaml())
		}
	}
	if len(r.children) > 0 {
		line("descriptors:")
		for _, child := range r.children {
			child.yaml(b, indent+"    ")
		}
	}
}

// yaml returns the limit as a mapping.
func (l *limit) yaml() string {
	var fields []string
	add := func(format string, args ...any) { fields = append(fields, fmt.Sprintf(format, args...)) }
	if l.name != "" {
		add("name: %s", l.name)
	}
	if len(l.replaces) > 0 {
		var names []string
		for _, name := range l.replaces {
			names = append(names, "{name: "+name+"}")
		}
		add("replaces: [%s]", strings.Join(names, ", "))
	}
	if l.unlimited {
		add("unlimited: true")
		return "{" + strings.Join(fields, ", ") + "}"
	}
	add("requests_per_unit: %d", l.requests)
	add("algorithm: %s", l.algorithm)
	if l.algorithm == "concurrency" {
		add("hold: %ds", l.period/second)
	} else {
		add("unit: %s", l.unit)
		add("unit_multiplier: %d", l.multiplier)
		add("charge_denied: %v", l.chargeDenied)
	}
	if l.burst > 0 {
		add("burst: %d", l.burst)
	}
	if l.instance {
		add("scope: instance")
	}
	if l.lease {
		add("lease: true, lease_waste: %v", l.leaseWaste)
	}
	if l.disabled {
		add("enabled: false")
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// override changes the limits of one target while it is in force.
type override struct {
	target   entry // without a value, it changes the rule without a value
	requests int64 // 0 leaves the number
	factor   float64
	disabled bool
	shadow   bool
}

// json returns the value of the override.
func (o *override) json() string {
	var fields []string
	if o.requests > 0 {
		fields = append(fields, fmt.Sprintf(`"rate_limits": [{"requests_per_unit": %d}]`, o.requests))
	}
	if o.factor > 0 {
		fields = append(fields, fmt.Sprintf(`"factor": %v`, o.factor))
	}
	if o.disabled {
		fields = append(fields, `"enabled": false`)
	}
	if o.shadow {
		fields = append(fields, `"shadow_mode": true`)
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// apply returns r with the override.
func (o *override) apply(r *rule) *rule {
	changedRule := *r
	changedRule.limits = slices.Clone(r.limits)
	changedRule.shadow = changedRule.shadow || o.shadow
	for i := range changedRule.limits {
		l := &changedRule.limits[i]
		l.requests = cmp.Or(o.requests, l.requests)
		if o.factor > 0 && l.requests > 0 {
			l.requests = max(int64(math.Round(float64(l.requests)*o.factor)), 1)
			if l.burst > 0 {
				l.burst = max(int64(math.Round(float64(l.burst)*o.factor)), 1)
			}
		}
		l.disabled = l.disabled || o.disabled
	}
	return &changedRule
}

// limits are the rules of a domain, with the overrides in force.
type limits struct {
	rules     []*rule
	overrides []override // those for any value come before those for a single value
}

// yaml returns the limits file of a domain.
func (l *limits) yaml(domain string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
	for _, r := range l.rules {
		r.yaml(&b, "  ")
	}
	return b.String()
}

// find returns the rule of a descriptor, or nil, and the name of its counters.
func (l *limits) find(entries []entry) (r *rule, name string) {
	level := l.rules
	for i, e := range entries {
		r = findIn(level, e)
		if r == nil {
			return nil, ""
		}
		value := e.value
		if r.shareThreshold && (r.condition != "" || r.value != e.value) {
			value = "shared " + r.value + r.condition + r.operand
		}
		if i == 0 && len(entries) == 1 {
			for j := range l.overrides {
				o := &l.overrides[j]
				switch {
				case o.target.key != e.key:
				case o.target.value == "" && r.value == "" && r.condition == "":
					r = o.apply(r)
				case o.target.value == e.value:
					r, value = o.apply(r), e.value
				}
			}
		}
		name += "|" + e.key + "=" + value
		level = r.children
	}
	return r, name
}

// findIn returns the rule of one level that matches an entry, or nil.
func findIn(rules []*rule, e entry) *rule {
	kinds := []func(r *rule) bool{
		func(r *rule) bool {
			return r.condition == "" && r.value == e.value && !strings.Contains(r.value, "*") && r.value != ""
		},
		func(r *rule) bool { return r.condition != "" && r.meets(e.value) },
		func(r *rule) bool { return strings.Contains(r.value, "*") && matchesPattern(r.value, e.value) },
		func(r *rule) bool { return r.condition == "" && r.value == "" },
	}
	for _, isMatch := range kinds {
		for _, rule := range rules {
			if rule.key == e.key && isMatch(rule) {
				return rule
			}
		}
	}
	return nil
}

// meets reports whether a value meets the condition.
func (r *rule) meets(value string) bool {
	switch r.condition {
	case "cidr":
		addr, err := netip.ParseAddr(value)
		return err == nil && netip.MustParsePrefix(r.operand).Contains(addr)
	case "in":
		return slices.Contains(strings.Split(r.operand, ", "), value)
	case "prefix":
		return strings.HasPrefix(value, r.operand)
	case "not-prefix":
		return !strings.HasPrefix(value, r.operand)
	}
	return regexp.MustCompile("^(?:" + r.operand + ")$").MatchString(value)
}

// matchesPattern reports whether a value matches a text in which each * stands for any text.
func matchesPattern(pattern, value string) bool {
	parts := strings.Split(pattern, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(value)
}
