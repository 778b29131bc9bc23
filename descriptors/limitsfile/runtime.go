package limitsfile

import (
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// RuntimeRule is a rule that was created at run time.
type RuntimeRule struct {
	Notes

	name        string          // the name of the rule in problems, such as "rule shop|tenant"
	root        *object         // the whole JSON object
	expressions expressionCache // keeps compiled expressions for later calls of Descriptor
}

const ruleExample = `{"rate_limit": {"unit": "minute", "requests_per_unit": 100}}`

// ParseRule reads a rule: a JSON object with notes and fields of a descriptor, but no key, value or descriptors.
func ParseRule(target string, value []byte) (*RuntimeRule, error) {
	r := &RuntimeRule{name: nameInProblems("rule", target), expressions: expressionCache{}}
	var err error
	r.Notes, err = parseChange(r.name, ruleObject, value, ruleExample, func(_ *document, o *object) { r.root = o })
	return r, err
}

// remedyForMisplacedField returns the remedy for a field that no rule has, or "" if a rule can have the field.
func remedyForMisplacedField(name string) string {
	switch {
	case name == "key" || name == "value":
		return "is in the target of a rule; leave it out of the rule"
	case name == "descriptors":
		return "belongs in no rule; create each child as a rule of its own"
	case IsLimitField(name):
		return "belongs in rate_limit; an example is " + ruleExample
	}
	return ""
}

// IsLimitField reports whether a field belongs in rate_limit and not in the descriptor.
func IsLimitField(name string) bool {
	f := findField(name)
	return f != nil && f.objects&rateLimitObject != 0 && f.objects&descriptorObject == 0
}

// Descriptor returns the descriptor of the rule. keys are the keys of the target of the rule, and value is the last value
// of the target. Descriptor checks the descriptor as in a limits file, and applies the defaults of the domain. patterns has
// the regular expressions of the domain, and Descriptor adds the regular expressions of the rule. Calls must not overlap.
func (r *RuntimeRule) Descriptor(domain *Domain, path string, keys []string, value string, patterns *condition.Patterns) (*Descriptor, fields.Problems) {
	d := newDocument(r.name, newParseState(Options{}))
	d.domain, d.expressions, d.patterns = domain, r.expressions, patterns
	o := r.root
	for _, c := range r.expressions { // an earlier call has compiled these expressions
		if err := patterns.Add(c); err != nil {
			d.errorf(o.node, nil, "cel: %v", err)
		}
	}
	desc := &Descriptor{Key: keys[len(keys)-1], Value: value, File: r.name}
	d.readCondition(desc, nil, o)
	if desc.Condition != nil {
		d.checkEntryKeys(desc.Condition, nil, o, keys)
	}
	if desc.Value != value {
		d.errorf(o.node, nil, "target: got the value %s, want the condition as the value: %s", strconv.Quote(value), strconv.Quote(desc.Value))
	}
	d.readDescriptor(desc, nil, o)
	if len(desc.Limits) == 0 && d.errorCount == 0 {
		d.errorf(o.node, nil, "rule has no limit; want rate_limit or rate_limits")
	}
	desc.CreationNotes = &r.Notes
	return desc, d.problemsAt(path)
}

// CheckSiblings returns an error if the conditions of d and of list are too many, or take too many steps.
func CheckSiblings(d *Descriptor, list []*Descriptor) error {
	if d.Condition == nil {
		return nil
	}
	conditions := []*condition.Condition{d.Condition}
	for _, sibling := range list {
		if sibling.Condition != nil && sibling.Key == d.Key && sibling.Value != d.Value {
			conditions = append(conditions, sibling.Condition)
		}
	}
	return checkConditions(conditions)
}

// PatternsOf returns the regular expressions of the descriptors in list and below. A shared condition counts once.
func PatternsOf(list []*Descriptor) (sum condition.Patterns) {
	addedConditions := map[*condition.Condition]bool{}
	var add func(list []*Descriptor)
	add = func(list []*Descriptor) {
		for _, d := range list {
			if c := d.Condition; c != nil && !addedConditions[c] {
				addedConditions[c] = true
				_ = sum.Add(c) // it can't fail, because the file was checked
			}
			add(d.Descriptors)
		}
	}
	add(list)
	return sum
}

// NewDescriptor returns a descriptor without limits.
func NewDescriptor(key, value string) *Descriptor {
	return &Descriptor{Key: key, Value: value, HasWildcardKey: strings.Contains(key, "*"), HasWildcardValue: strings.Contains(value, "*")}
}

func nameInProblems(kind, target string) string {
	const maxBytes = 200
	return strings.TrimSpace(kind + " " + fields.Cut(fields.Printable(target), maxBytes))
}

// Notes are the author, the reason and the end of a change at run time.
type Notes struct {
	// ExpiresAt is the time at which the change expires. The zero Time means never.
	ExpiresAt time.Time `json:"expires_at"`

	// Author made the change at the time SetAt. An unknown author is empty, and an unknown time is zero.
	Author string    `json:"set_by"`
	SetAt  time.Time `json:"set_at"`

	Reason string `json:"reason"`
}

// HasExpired reports whether the change has expired at now.
func (n Notes) HasExpired(now time.Time) bool {
	return !n.ExpiresAt.IsZero() && !now.Before(n.ExpiresAt)
}

// String returns the notes in words: ` by alice until 2030-01-31T12:00:00Z, reason "spike"`.
func (n Notes) String() string {
	text := ""
	if n.Author != "" {
		text += " by " + fields.Printable(n.Author)
	}
	if !n.ExpiresAt.IsZero() {
		text += " until " + n.ExpiresAt.UTC().Format(time.RFC3339)
	}
	if n.Reason != "" {
		text += ", reason " + strconv.Quote(n.Reason)
	}
	return text
}

// MaxReasonBytes is the maximum size of a reason.
const MaxReasonBytes = 500

func (d *document) readNotes(o *object) Notes {
	n := Notes{
		ExpiresAt: d.readTime(o.field("expires_at")), SetAt: d.readTime(o.field("set_at")),
		Author: o.field("set_by").Text, Reason: o.field("reason").Text,
	}
	if len(n.Reason) > MaxReasonBytes {
		d.errorf(o.field("reason").node, nil, "reason: got %d bytes, want at most %d", len(n.Reason), MaxReasonBytes)
	}
	return n
}

func (d *document) readTime(v value) time.Time {
	if !v.isValid() {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, v.Text)
	if err != nil {
		d.errorf(v.node, nil, "%s: got %s, want a time such as 2030-01-31T12:00:00Z", v.schema.Name, fields.Display(v.node))
	}
	return t
}

// parseChange reads the value of a change at run time: a JSON object of type t, with notes and other fields. check checks
// the other fields. Problems show name, the name of the change, and example, a valid value.
func parseChange(name string, t objectType, value []byte, example string, check func(d *document, o *object)) (n Notes, err error) {
	d := newDocument(name, newParseState(Options{}))
	if root := d.readJSON(value, example); root != nil {
		o := d.readObject(t, nil, root)
		n = d.readNotes(o)
		check(d, o)
	}
	if problems := d.problemsAt(""); len(problems) > 0 {
		return n, problems
	}
	return n, nil
}

// ParseSwitch reads the notes of a switch from a JSON object. The error is Problems.
func ParseSwitch(name string, value []byte) (Notes, error) {
	return parseChange(name, switchObject, value, `{"reason": "incident", "expires_at": "2030-01-31T12:00:00Z"}`, func(*document, *object) {})
}

// ParseShadowMode reads the switch of SHADOW_MODE: a JSON object with notes and shadow_mode.
func ParseShadowMode(name string, value []byte) (isOn bool, n Notes, err error) {
	n, err = parseChange(name, shadowModeObject, value, `{"shadow_mode": true}`, func(d *document, o *object) {
		mode := o.field("shadow_mode")
		if !mode.isPresent() {
			d.errorf(o.node, nil, "shadow_mode is missing; want true or false")
		}
		isOn = mode.Flag
	})
	return isOn, n, err
}
