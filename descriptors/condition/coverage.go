package condition

import (
	"regexp/syntax"
	"slices"
	"strings"
)

// Covers reports whether each value that meets other certainly meets c.
func (c *Condition) Covers(other *Condition) bool {
	switch {
	case c.text == other.text || c.MatchesAll():
		return true
	case other.negated || c.ReadsEntries():
		return false
	case other.kind == inKind:
		return len(other.list.entries) <= maxExamples && !slices.ContainsFunc(other.list.entries, func(text string) bool { return !c.Meets(text) })
	case c.negated || c.kind != other.kind:
		return false
	case c.kind == prefixKind:
		return strings.HasPrefix(other.prefix, c.prefix)
	case c.kind == cidrKind:
		return c.coversNetworks(other.list.entries)
	}
	return false
}

// coversNetworks reports whether each network is inside a network of c.
func (c *Condition) coversNetworks(networks []string) bool {
	if len(networks) > maxExamples {
		return false
	}
	for _, text := range networks {
		network, err := parseNetwork(text)
		if err != nil {
			return false
		}
		if _, ok := c.list.networks.LookupPrefixLPM(network); !ok {
			return false
		}
	}
	return true
}

// CoversPrefix reports whether each value that starts with prefix certainly meets c.
func (c *Condition) CoversPrefix(prefix string) bool {
	return c.MatchesAll() || c.kind == prefixKind && !c.negated && strings.HasPrefix(prefix, c.prefix)
}

// IsOpposite reports whether each value meets either c or other. An expression can fail, and
// then a value meets neither.
func (c *Condition) IsOpposite(other *Condition) bool {
	return c.kind != celKind && c.negated != other.negated && strings.TrimPrefix(c.text, "not ") == strings.TrimPrefix(other.text, "not ")
}

// Meets reports whether text meets c in a request without other entries.
func (c *Condition) Meets(text string) bool {
	isMet, err := c.Match(&Value{text: text}, new(Budget))
	return isMet && err == nil
}

// MatchesAll reports whether all values of requests certainly meet c. They have no line breaks.
func (c *Condition) MatchesAll() bool {
	if c.kind != regexKind {
		return false
	}
	if c.negated {
		return isImpossible(c.regexSyntax)
	}
	return isAnything(c.regexSyntax)
}

// MatchesNothing reports whether certainly no value meets c.
func (c *Condition) MatchesNothing() bool {
	return c.kind == regexKind && c.Not().MatchesAll()
}

// isAnything reports whether e is .* between anchors and brackets.
func isAnything(e *syntax.Regexp) bool {
	switch e.Op {
	case syntax.OpStar:
		return e.Sub[0].Op == syntax.OpAnyChar || e.Sub[0].Op == syntax.OpAnyCharNotNL
	case syntax.OpCapture:
		return isAnything(e.Sub[0])
	case syntax.OpConcat:
		subs := e.Sub
		if subs[0].Op == syntax.OpBeginText {
			subs = subs[1:]
		}
		if n := len(subs) - 1; n >= 0 && subs[n].Op == syntax.OpEndText {
			subs = subs[:n]
		}
		return len(subs) == 1 && isAnything(subs[0])
	}
	return false
}

// isImpossible reports whether e certainly matches no text: a character must come before ^ or
// after $.
func isImpossible(e *syntax.Regexp) bool {
	program, err := syntax.Compile(e.Simplify())
	if err != nil {
		return false
	}
	type state struct {
		instruction            uint32
		hasCharacter, hasEnded bool
	}
	seen := map[state]bool{}
	var canMatch func(s state) bool
	canMatch = func(s state) bool {
		if seen[s] {
			return false
		}
		seen[s] = true
		i := program.Inst[s.instruction]
		s.instruction = i.Out
		switch i.Op {
		case syntax.InstMatch:
			return true
		case syntax.InstFail:
			return false
		case syntax.InstAlt, syntax.InstAltMatch:
			return canMatch(s) || canMatch(state{i.Arg, s.hasCharacter, s.hasEnded})
		case syntax.InstEmptyWidth:
			if s.hasCharacter && syntax.EmptyOp(i.Arg)&syntax.EmptyBeginText != 0 {
				return false
			}
			s.hasEnded = s.hasEnded || syntax.EmptyOp(i.Arg)&syntax.EmptyEndText != 0
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			if s.hasEnded {
				return false
			}
			s.hasCharacter = true
		}
		return canMatch(s)
	}
	return !canMatch(state{instruction: uint32(program.Start)})
}

const (
	maxExampleDepth = 100
	maxExampleBytes = 4096
)

// exampleOf returns a text that e matches. The text is only a guess if e has \b or \B, or if the
// text would be very long.
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

// readableRune returns a rune of ranges, and a visible one if possible. ranges has the first and
// the last rune of each range in turn.
func readableRune(ranges []rune) rune {
	for i := 0; i+1 < len(ranges); i += 2 {
		if first := max(ranges[i], '!'); first <= ranges[i+1] && first <= '~' {
			return first
		}
	}
	return ranges[0]
}
