package condition

import (
	"regexp/syntax"
	"strings"
)

const (
	maxExampleDepth = 100
	maxExampleBytes = 4096
)

// exampleOf returns a text that e matches. It is a guess if e has \b or \B, or if the text would be very long.
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

// readableRune returns a rune of ranges of first and last runes, and a visible one if possible.
func readableRune(ranges []rune) rune {
	for i := 0; i+1 < len(ranges); i += 2 {
		if first := max(ranges[i], '!'); first <= ranges[i+1] && first <= '~' {
			return first
		}
	}
	return ranges[0]
}
