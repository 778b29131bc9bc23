package main

import (
	"cmp"
	"io"
	"os"
	"regexp"
)

const (
	red, green, yellow, magenta, dim = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[2m"
	noColour                         = "\x1b[0m"
)

// isColourTerminal reports whether out shows colours. See no-color.org.
func isColourTerminal(out io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && isScreen(out)
}

func inColour(hasColours bool, colour, text string) string {
	if !hasColours {
		return text
	}
	return colour + text + noColour
}

// goodOrBad matches the words that say how well things are: codes anywhere, and others at the start of a text.
var goodOrBad = regexp.MustCompile(`\b(OK|OVER_LIMIT|ERROR)\b|(?m)^(?:(?:ok|problem|warning|note|FAIL|tighter|mixed|looser|rejected)\b|rls:)`)

var wordColours = map[string]string{
	"OK": green, "ok": green, "looser": green, "warning": yellow, "note": yellow, "mixed": yellow,
}

// painter writes text with its words of goodOrBad in colour.
type painter struct{ out io.Writer }

func (p painter) Write(text []byte) (int, error) {
	_, err := p.out.Write(goodOrBad.ReplaceAllFunc(text, func(word []byte) []byte {
		return []byte(inColour(true, cmp.Or(wordColours[string(word)], red), string(word)))
	}))
	return len(text), err
}

// painted returns a writer to out, which is in colour if out shows colours.
func painted(out io.Writer) io.Writer {
	if isColourTerminal(out) {
		return painter{out}
	}
	return out
}
