package limitsfile

import "strings"

// Pattern is a key or value in which * stands for any number of bytes. It has no escapes.
type Pattern struct {
	Literal        bool // there is no *, and Prefix is the whole pattern
	Prefix, Suffix string
	Middle         []string // non-empty parts between two *

	minBytes int // the least length of a matching text
}

// NewPattern returns the pattern with this text.
func NewPattern(text string) Pattern {
	parts := strings.Split(text, "*")
	last := len(parts) - 1
	if last == 0 {
		return Pattern{Literal: true, Prefix: text, minBytes: len(text)}
	}
	p := Pattern{Prefix: parts[0], Suffix: parts[last]}
	for _, part := range parts {
		p.minBytes += len(part)
	}
	for _, part := range parts[1:last] {
		if part != "" {
			p.Middle = append(p.Middle, part)
		}
	}
	return p
}

// Match reports whether p matches all of text.
func (p *Pattern) Match(text string) bool {
	if p.Literal {
		return text == p.Prefix
	}
	if len(text) < p.minBytes || text[:len(p.Prefix)] != p.Prefix || text[len(text)-len(p.Suffix):] != p.Suffix {
		return false
	}
	if len(p.Middle) == 0 {
		return true
	}
	text = text[len(p.Prefix) : len(text)-len(p.Suffix)]
	for _, part := range p.Middle {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return true
}

// MatchesAll reports whether p matches every text: p has nothing but *.
func (p *Pattern) MatchesAll() bool { return !p.Literal && p.minBytes == 0 }
