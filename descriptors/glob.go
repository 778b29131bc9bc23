package descriptors

import "strings"

// glob is a pattern in which * stands for any number of bytes. It is anchored at
// both ends and has no escapes. The zero value matches the empty text only.
type glob struct {
	literal        bool // no *: all of it is prefix
	prefix, suffix string
	middle         []string // non-empty parts between two *
	least          int      // bytes a text must have
}

// anything matches every text.
var anything = newGlob("*")

func newGlob(pattern string) glob {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return glob{literal: true, prefix: pattern, least: len(pattern)}
	}
	g := glob{prefix: parts[0], suffix: parts[last]}
	for _, p := range parts {
		g.least += len(p)
	}
	for _, p := range parts[1:last] {
		if p != "" {
			g.middle = append(g.middle, p)
		}
	}
	return g
}

func (g *glob) match(s string) bool {
	if g.literal {
		return s == g.prefix
	}
	if len(s) < g.least || s[:len(g.prefix)] != g.prefix || s[len(s)-len(g.suffix):] != g.suffix {
		return false
	}
	if len(g.middle) == 0 {
		return true
	}
	s = s[len(g.prefix) : len(s)-len(g.suffix)]
	for _, part := range g.middle {
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return true
}

// pairs is a set of pairs of neighbouring bytes, hashed to 128 bits: a pattern
// can match only a text that has all pairs of the pattern.
type pairs [2]uint64

// longText is where a text's pairs fill the set, so that it tells nothing.
const longText = 512

// edge stands for what is before and after a text.
const edge = 256

func (p *pairs) add(a, b uint32) {
	h := (a<<9 ^ b) * 0x9E3779B1 >> 25
	p[h>>6] |= 1 << (h & 63)
}

// addText adds the pairs of s, whose left and right neighbours are given; they
// make none if they are negative.
func (p *pairs) addText(s string, left, right int) {
	for i := range len(s) {
		if left >= 0 {
			p.add(uint32(left), uint32(s[i]))
		}
		left = int(s[i])
	}
	if left >= 0 && right >= 0 {
		p.add(uint32(left), uint32(right))
	}
}

// addGlob adds the pairs that every text of g has. salt tells keys from values.
func (p *pairs) addGlob(g *glob, salt int) {
	if g.literal {
		p.addText(g.prefix, edge+salt, edge+salt)
		return
	}
	if g.prefix != "" {
		p.addText(g.prefix, edge+salt, -1)
	}
	for _, part := range g.middle {
		p.addText(part, -1, -1)
	}
	if g.suffix != "" {
		p.addText(g.suffix, -1, edge+salt)
	}
}
