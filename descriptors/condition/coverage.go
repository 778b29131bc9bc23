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
	switch e.Op {
	case syntax.OpNoMatch:
		return true
	case syntax.OpCapture, syntax.OpPlus:
		return isImpossible(e.Sub[0])
	case syntax.OpAlternate:
		return !slices.ContainsFunc(e.Sub, func(sub *syntax.Regexp) bool { return !isImpossible(sub) })
	case syntax.OpConcat:
		isConsumed, isEnded := false, false
		for _, sub := range e.Sub {
			consumes := mustConsume(sub)
			if isImpossible(sub) || consumes && isEnded || isConsumed && sub.Op == syntax.OpBeginText {
				return true
			}
			isConsumed = isConsumed || consumes
			isEnded = isEnded || sub.Op == syntax.OpEndText
		}
	}
	return false
}

// mustConsume reports whether e certainly matches no empty text.
func mustConsume(e *syntax.Regexp) bool {
	switch e.Op {
	case syntax.OpLiteral, syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return true
	case syntax.OpCapture, syntax.OpPlus:
		return mustConsume(e.Sub[0])
	case syntax.OpRepeat:
		return e.Min > 0 && mustConsume(e.Sub[0])
	case syntax.OpAlternate:
		return !slices.ContainsFunc(e.Sub, func(sub *syntax.Regexp) bool { return !mustConsume(sub) })
	case syntax.OpConcat:
		return slices.ContainsFunc(e.Sub, mustConsume)
	}
	return false
}
