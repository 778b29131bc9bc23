package boundedyaml

import (
	"bytes"
	"regexp"
	"strings"
)

// blockHeader matches the first line of a text in block style.
var blockHeader = regexp.MustCompile(`^[|>][+-]?[1-9]?[+-]?(\s+#.*)?$`)

// propertyPattern matches an anchor or a tag before a value. alias matches an alias alone.
var (
	propertyPattern = regexp.MustCompile(`^(&[\w-]+|![^\s<,{}\[\]]*)(\s+|$)`)
	alias           = regexp.MustCompile(`^\*[\w-]+(\s+#.*)?$`)
)

// readValue reads the value that starts at offset in block style.
func (f *causeFinder) readValue(offset int) {
	start, text := f.rest(offset)
	f.after = nothing
	if !f.countPart() {
		return
	}
	if text == "" {
		f.after = anyValue
		return
	}
	switch text[0] {
	case '|', '>':
		if !blockHeader.MatchString(text) {
			f.failSpecial(start, text)
			return
		}
		f.skipBlockText()
	case '"', '\'':
		if end, ok := f.quotedEnd(start); ok {
			f.checkEnd(start, end)
		}
	case '[', '{':
		if end, ok := f.flowEnd(start); ok {
			f.checkEnd(start, end)
		}
	case '@', '`', '%', ']', '}', ',':
		f.failSpecial(start, text)
	case '&', '!', '*':
		switch skip := propertyPattern.FindString(text); {
		case skip != "":
			f.readValue(start + len(skip))
		case !alias.MatchString(text):
			f.failSpecial(start, text)
		}
	default:
		f.readPlain(start, text)
	}
}

// readPlain reads a text without quotes.
func (f *causeFinder) readPlain(start int, text string) {
	f.after = plainText
	text, _, hasComment := strings.Cut(text, " #")
	text = strings.TrimRight(text, " \t")
	if hasComment {
		f.after = nothing
	}
	switch i := strings.Index(text+" ", ": "); {
	case isItem(text):
		f.fail(start, "an item of a list is in the line of its key; want it in the next line")
	case i >= 0:
		f.fail(start+i, "the text has a second colon; want quotes: '%s'", excerpt(text))
	}
}

func (f *causeFinder) failSpecial(offset int, text string) {
	f.fail(offset, "a value can't start with %.1s unless it is in quotes; want '%s'", text, excerpt(text))
}

// skipBlockText skips the lines of a text in block style.
func (f *causeFinder) skipBlockText() {
	for f.next < len(f.data) {
		end := f.lineEnd(f.next)
		line := f.data[f.next:end]
		if len(bytes.TrimSpace(line)) > 0 && len(line)-len(bytes.TrimLeft(line, " ")) <= f.indent() {
			return
		}
		f.next = end + 1
	}
}

// checkEnd checks that no text follows a value from start to end in its last line.
func (f *causeFinder) checkEnd(start, end int) {
	f.next = max(f.next, f.lineEnd(end)+1)
	after, text := f.rest(end)
	if text == "" {
		return
	}
	whole := string(f.data[start:end]) + text
	switch {
	case bytes.IndexByte(f.data[start:end], '\n') >= 0 && f.data[start] != '[' && f.data[start] != '{':
		f.failUnclosed(start)
	case f.data[start] == '\'':
		f.fail(after, "text follows the closing quote; inside single quotes, write '' for '")
	case f.data[start] == '"':
		f.fail(after, `text follows the closing quote; inside double quotes, write \" for "`)
	case text[0] == ':' || strings.HasPrefix(text, "]") || strings.HasPrefix(text, "}"):
		f.fail(after, "%.1s has no opening bracket or quote before it; remove it, or put the value into quotes", text)
	default:
		f.fail(start, "a value can't start with %.1s unless it is in quotes or a whole list or mapping; want '%s'", whole, excerpt(whole))
	}
}

func (f *causeFinder) failUnclosed(start int) {
	f.fail(start, "the quote %c opens here and is not closed; want %c at the end of the value", f.data[start], f.data[start])
}

// quotedEnd returns the offset behind the quote that closes the text at start.
func (f *causeFinder) quotedEnd(start int) (end int, ok bool) {
	quote := f.data[start]
	for i := start + 1; i < len(f.data); i++ {
		switch c := f.data[i]; {
		case c == '\\' && quote == '"':
			if i++; i < len(f.data) && strings.IndexByte("0abtnvfre \"/\\N_LPxuU\t\r\n", f.data[i]) < 0 {
				f.fail(i-1, `\%c is no escape in double quotes; want single quotes, or \\%c`, f.data[i], f.data[i])
				return 0, false
			}
		case c == quote && quote == '\'' && i+1 < len(f.data) && f.data[i+1] == quote:
			i++
		case c == quote:
			return i + 1, true
		}
	}
	f.failUnclosed(start)
	return 0, false
}
