// Package condition tests the value of an entry: whether it lies in a network, is in a list, has a prefix, matches
// a regular expression, or makes an expression true.
//
// Terms:
//
// - condition: a test that a descriptor has in place of a value;
// - list: the values or networks of a condition;
// - expression: a condition in CEL; an expression can also read the entries before the value;
// - text: the short form of a condition, such as `cidr(10.0.0.0/8)`, in paths of rules.
package condition

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// MaxEntryBytes bounds an entry of a list, a prefix, a regular expression or an expression in CEL.
const MaxEntryBytes = 1024

// Condition is a test of values. It is immutable and safe for concurrent use.
type Condition struct {
	kind      kind
	isNegated bool
	text      string

	list        *List          // the list of a cidr or in condition; otherwise nil
	prefix      string         // the prefix of a prefix condition; for a regex, a prefix of all values that match
	wholeRegex  *regexp.Regexp // the regular expression of a regex condition; it matches only whole values
	regexSyntax *syntax.Regexp // the syntax tree of a regex condition
	size        patternSize    // the size of the regular expressions in a regex or cel condition

	expression *expression // the expression of a cel condition
}

// kind selects the test of a condition. It is a number, because with an interface Match would have to allocate each Value.
type kind uint8

const (
	cidrKind kind = iota
	inKind
	prefixKind
	regexKind
	celKind
)

// Value is a value of a request. It keeps the parsed address, because several conditions can test one value.
type Value struct {
	text     string
	entries  []*ratelimitv3.RateLimitDescriptor_Entry // the last entry has the value
	addr     netip.Addr                               // the text as an address; invalid if the text is not an address
	isParsed bool                                     // addr is set
}

// NewValue returns the Value of the last entry. entries are the first entries of a descriptor in a request.
func NewValue(entries []*ratelimitv3.RateLimitDescriptor_Entry) Value {
	return Value{text: entries[len(entries)-1].GetValue(), entries: entries}
}

// address parses v as an IP address. It converts an IPv4 address in IPv6 form to IPv4, and removes a zone. The result is
// invalid if v is not an address.
func (v *Value) address() netip.Addr {
	if !v.isParsed {
		v.isParsed = true
		if addr, err := netip.ParseAddr(v.text); err == nil {
			v.addr = addr.Unmap().WithZone("")
		}
	}
	return v.addr
}

// Match reports whether v meets c. It spends the steps of the test from b, the steps that the call has left. MaxCallSteps
// says what a step is. If b has too few steps, Match returns ErrNotTested. If an expression fails, Match returns its error.
// After an error, isMet is false even if c is negated.
func (c *Condition) Match(v *Value, b *Budget) (isMet bool, err error) {
	switch c.kind {
	case cidrKind:
		addr := v.address()
		isMet = addr.IsValid() && c.list.networks.Lookup(addr)
	case inKind:
		_, isMet = c.list.values[v.text]
	case prefixKind:
		isMet = strings.HasPrefix(v.text, c.prefix)
	case regexKind:
		if strings.HasPrefix(v.text, c.prefix) {
			if !b.spend(patternSteps(c.size.instructions, len(v.text))) {
				return false, ErrNotTested
			}
			isMet = c.wholeRegex.MatchString(v.text)
		}
	case celKind:
		if isMet, err = c.expression.isTrue(v, b); err != nil {
			return false, err
		}
	}
	return isMet != c.isNegated, nil
}

// String returns the text of c. Conditions with the same text have the same kind, and the same entries or file.
func (c *Condition) String() string { return c.text }

// List returns the list of c, or nil if c has no list.
func (c *Condition) List() *List { return c.list }

// Not returns a condition that a value meets if it does not meet c.
func (c *Condition) Not() *Condition {
	negation := *c
	negation.isNegated = !c.isNegated
	negation.text = "not " + c.text
	return &negation
}

// Examples returns values that meet c, and similar values that do not meet c.
func (c *Condition) Examples() []string {
	var values []string
	switch c.kind {
	case cidrKind:
		values = firstAddresses(c.list.examples())
	case inKind:
		values = c.list.examples()
	case prefixKind:
		values = []string{c.prefix + "~", c.prefix}
	case regexKind:
		values = []string{exampleOf(c.regexSyntax, 0)}
	case celKind:
		for _, text := range c.expression.texts {
			values = append(values, text, text+"~")
		}
	}
	return append(values, "~", "192.0.2.1", "2001:db8::1")
}

// Differences returns values that can meet only one of a and b. a and b have the same text, but the contents of their list
// files differ.
func Differences(a, b *Condition) []string {
	if a.list == nil || b.list == nil {
		return nil
	}
	differences := a.list.differences(b.list)
	if a.kind == cidrKind {
		return firstAddresses(differences)
	}
	return differences
}

// ExamplesShowDifference reports whether an example of other certainly fails c if any value that meets other fails c. A nil c is a
// test that is not a condition.
func (c *Condition) ExamplesShowDifference(other *Condition) bool {
	isSameKind := c != nil && !c.isNegated && c.kind == other.kind
	switch {
	case c != nil && c.text == other.text && (c.list == nil || slices.Equal(c.list.entries, other.list.entries)):
		return true
	case other.isNegated || other.list != nil && len(other.list.entries) > maxExamples:
		return false
	case !isSameKind || other.kind != cidrKind:
		return other.kind == inKind || isSameKind && other.kind == prefixKind
	}
	for network := range other.list.networks.All() {
		for range c.list.networks.Subnets(network) { // c has a part of network
			if !c.list.networks.LookupPrefix(network) {
				return false
			}
		}
	}
	return true
}

// Prefix returns a condition that values meet if they start with prefix.
func Prefix(prefix string) (*Condition, error) {
	switch {
	case prefix == "":
		return nil, errors.New("got an empty prefix, which every value has; leave prefix out to match every value")
	case len(prefix) > MaxEntryBytes:
		return nil, fmt.Errorf("got %d bytes, want at most %d", len(prefix), MaxEntryBytes)
	}
	return &Condition{kind: prefixKind, prefix: prefix, text: "prefix(" + shorten(prefix) + ")"}, nil
}

// Regex returns a condition that a value meets if the regular expression in RE2 matches the whole value. Regex adds the
// expression to p before it compiles the expression.
func Regex(expression string, p *Patterns) (*Condition, error) {
	switch {
	case expression == "":
		return nil, errors.New("got an empty expression; want an expression such as ^v[0-9]+$")
	case len(expression) > MaxEntryBytes:
		return nil, fmt.Errorf("got %d bytes, want at most %d", len(expression), MaxEntryBytes)
	}
	syntaxTree, size, err := parsePattern(expression)
	if err != nil {
		return nil, err
	}
	if err := p.add(size); err != nil {
		return nil, err
	}
	// If expression has a \Q that is not closed, it would quote the \z. syntaxTree.String() has no \Q.
	wholeRegex, err := regexp.Compile(`\A(?:` + syntaxTree.String() + `)\z`)
	if err != nil {
		return nil, err
	}
	return &Condition{kind: regexKind, wholeRegex: wholeRegex, regexSyntax: syntaxTree, size: size, prefix: prefixOf(syntaxTree), text: "regex(" + shorten(expression) + ")"}, nil
}

func firstAddresses(networks []string) []string {
	var texts []string
	for _, text := range networks {
		if network, err := parseNetwork(text); err == nil {
			texts = append(texts, network.Addr().String())
		}
	}
	return texts
}

const (
	maxExampleDepth = 100
	maxExampleBytes = 4096
)

// exampleOf returns a text that e matches. If e has \b or \B, or matches only very long texts, e may not match the result.
func exampleOf(e *syntax.Regexp, depth int) string {
	if depth > maxExampleDepth {
		return ""
	}
	var b strings.Builder
	add := func(sub *syntax.Regexp, count int) {
		text := exampleOf(sub, depth+1)
		for range count {
			if b.Len()+len(text) <= maxExampleBytes {
				b.WriteString(text)
			}
		}
	}
	switch e.Op {
	case syntax.OpLiteral:
		return string(e.Rune)
	case syntax.OpCharClass:
		if len(e.Rune) > 0 {
			return string(readableRune(e.Rune))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return "~"
	case syntax.OpCapture, syntax.OpPlus, syntax.OpConcat:
		for _, sub := range e.Sub {
			add(sub, 1)
		}
	case syntax.OpAlternate:
		add(e.Sub[0], 1)
	case syntax.OpRepeat:
		add(e.Sub[0], e.Min)
	}
	return b.String()
}

// readableRune returns a rune of ranges, if possible visible ASCII. A range is a first and a last rune.
func readableRune(ranges []rune) rune {
	for i := 0; i+1 < len(ranges); i += 2 {
		if first := max(ranges[i], '!'); first <= ranges[i+1] && first <= '~' {
			return first
		}
	}
	return ranges[0]
}
