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

func addColour(hasColours bool, colour, text string) string {
	if !hasColours {
		return text
	}
	return colour + text + noColour
}

// stateWords matches the words that get a colour: codes such as OK and the marks of levels anywhere, and words such as
// problem at the start of a line.
var stateWords = regexp.MustCompile(`[✓▲✗]|\b(OK|OVER_LIMIT|ERROR)\b|(?m)^(?:(?:ok|problem|warning|note|FAIL|tighter|mixed|looser|rejected)\b|rls:)`)

var wordColours = map[string]string{
	"OK": green, "ok": green, "looser": green, "✓": green, "▲": yellow, "warning": yellow, "note": yellow, "mixed": yellow,
}

// colourWriter writes text, with its stateWords in colour.
type colourWriter struct{ out io.Writer }

func (w colourWriter) Write(text []byte) (int, error) {
	_, err := w.out.Write(stateWords.ReplaceAllFunc(text, func(word []byte) []byte {
		return []byte(addColour(true, cmp.Or(wordColours[string(word)], red), string(word)))
	}))
	return len(text), err
}

// newColourWriter returns a colourWriter to out, or out itself if out shows no colours.
func newColourWriter(out io.Writer) io.Writer {
	if isColourTerminal(out) {
		return colourWriter{out}
	}
	return out
}
