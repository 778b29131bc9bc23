package boundedyaml

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// findCause returns the likely cause why the parser rejects data: its place and its remedy. It
// returns nil if the cause is unknown. It is only called after the parser has failed, so it
// rejects nothing itself.
func findCause(data []byte) *Problem {
	if bytes.IndexByte(data, 0) >= 0 {
		return nil // UTF-16
	}
	f := &causeFinder{data: data, suspect: finding{offset: -1}, cause: finding{offset: -1}}
	for f.next < len(data) && f.cause.offset < 0 && !f.isDone {
		f.readLine()
	}
	found := f.cause
	if found.offset < 0 || f.suspect.offset >= 0 && f.suspect.entry >= f.entries-1 {
		found = f.suspect
	}
	if found.offset < 0 {
		return nil
	}
	start := bytes.LastIndexByte(data[:found.offset], '\n') + 1
	return &Problem{f.line(found.offset), 1 + utf8.RuneCount(data[start:found.offset]), found.reason}
}

// causeFinder reads a file line by line, and stops at the first text that can't be right. It
// knows the part of YAML that people write by hand.
type causeFinder struct {
	data    []byte
	next    int          // offset of the next line
	blocks  []block      // from the root to the last entry
	after   continuation // the last entry
	entries int          // lines with content so far
	parts   int          // items, keys and values in the line
	isDone  bool         // the rest is a part of YAML that causeFinder does not know

	cause   finding // certain
	suspect finding // valid YAML that explains a mistake in this entry or in the next one
}

// finding is a place with its reason. The offset is -1 if there is none.
type finding struct {
	offset int
	reason string
	entry  int
}

// keyText matches a key, its colon and the white space after it.
var keyText = regexp.MustCompile(`^[^\s:#"'\[\]{},][^:#\n]*?(?::[^\s][^:#\n]*?)*\s*:(?:[ \t]|\r?$)`)

// tightKey matches a key whose colon has no space behind it.
var tightKey = regexp.MustCompile(`^([A-Za-z_][\w.-]*):([^\s/].*)$`)

// fail sets the cause, unless there is one. So the first cause counts.
func (f *causeFinder) fail(offset int, format string, args ...any) {
	if f.cause.offset < 0 {
		f.cause = finding{offset, fmt.Sprintf(format, args...), f.entries}
	}
}

// suspectAt sets the suspect. The last one counts, because a mistake comes soon after it.
func (f *causeFinder) suspectAt(offset int, format string, args ...any) {
	f.suspect = finding{offset, fmt.Sprintf(format, args...), f.entries}
}

// line returns the number of the line at offset.
func (f *causeFinder) line(offset int) int { return 1 + bytes.Count(f.data[:offset], []byte("\n")) }

// lineEnd returns the offset of the end of the line at offset.
func (f *causeFinder) lineEnd(offset int) int {
	if n := bytes.IndexByte(f.data[offset:], '\n'); n >= 0 {
		return offset + n
	}
	return len(f.data)
}

// rest returns the rest of the line at offset, without white space around it and its comment.
func (f *causeFinder) rest(offset int) (start int, text string) {
	text = string(f.data[offset:f.lineEnd(offset)])
	trimmed := strings.TrimLeft(text, " \t")
	start = offset + len(text) - len(trimmed)
	if strings.HasPrefix(trimmed, "#") {
		return start, ""
	}
	return start, strings.TrimRight(trimmed, " \t\r")
}

// readLine reads the next line with all that its value spans.
func (f *causeFinder) readLine() {
	start := f.next
	end := f.lineEnd(start)
	f.next = end + 1
	indent := 0
	for start+indent < end && f.data[start+indent] == ' ' {
		indent++
	}
	offset, text := f.rest(start)
	if text == "" {
		return
	}
	f.entries++
	f.parts = 0
	switch {
	case f.data[start+indent] == '\t':
		f.fail(start+indent, "a tab is in the indentation; want spaces only")
	case isConflict(text) && indent == 0:
		f.fail(start, "%.7s marks a merge conflict; keep one of the versions, and remove the marks", text)
	case indent == 0 && (text == "..." || strings.HasPrefix(text, "---") && len(f.blocks) > 0):
		f.isDone = true
	case indent == 0 && (strings.HasPrefix(text, "---") || text[0] == '%' && len(f.blocks) == 0):
	case f.after == plainText && indent > f.indent():
		f.continuePlain(offset, indent, text)
	default:
		if f.enterBlock(offset, indent, text) {
			f.readEntry(offset, indent, text)
		}
	}
}

// isConflict reports whether text marks a merge conflict of git.
func isConflict(text string) bool {
	return strings.HasPrefix(text, "<<<<<<< ") || strings.HasPrefix(text, ">>>>>>> ") || text == "======="
}

// isItem reports whether text starts an item of a list.
func isItem(text string) bool { return text == "-" || strings.HasPrefix(text, "- ") }

// isTightItem reports whether text starts with a - that lacks its space.
func isTightItem(text string) bool {
	return len(text) > 1 && text[0] == '-' && (text[1] == '_' || text[1] >= 'A' && text[1] <= 'z') && strings.Contains(text, ":")
}

// failTightItem reports an item whose - lacks its space.
func (f *causeFinder) failTightItem(offset int, text string) {
	f.fail(offset, "no space after the - of %s; want %s", excerpt(text), excerpt("- "+text[1:]))
}

// maxParts bounds the parts of a line, because each part is read up to the end of the line.
const maxParts = 20

// countPart counts a part of the line, and reports whether to go on.
func (f *causeFinder) countPart() bool {
	f.parts++
	f.isDone = f.isDone || f.parts > maxParts
	return !f.isDone
}

// readEntry reads an item, a key with its value, or a value.
func (f *causeFinder) readEntry(offset, indent int, text string) {
	if !f.countPart() {
		return
	}
	top := block{indent: -1}
	if len(f.blocks) > 0 {
		top = f.blocks[len(f.blocks)-1]
	}
	isNew := func(isList bool) bool { return top.indent < indent || top.isList != isList }
	if isItem(text) {
		if isNew(true) {
			f.blocks = append(f.blocks, block{indent, true, offset})
		}
		start, rest := f.rest(offset + 1)
		if rest == "" {
			f.after = anyValue
			return
		}
		f.readEntry(start, indent+start-offset, rest)
		return
	}
	end := f.keyEnd(offset, text)
	if end > 0 {
		if isTightItem(text) {
			f.suspectAt(offset, "no space after the - of %s; want %s", excerpt(text), excerpt("- "+text[1:]))
		}
		if isNew(false) {
			f.blocks = append(f.blocks, block{indent, false, offset})
		}
		f.readValue(end)
		return
	}
	tight := tightKey.FindStringSubmatch(text)
	if tight != nil {
		f.suspectAt(offset+len(tight[1]), "no space after the colon of %s; want %s", excerpt(text), excerpt(tight[1]+": "+tight[2]))
	}
	if top.indent == indent && !top.isList {
		switch {
		case isTightItem(text):
			f.failTightItem(offset, text)
		case strings.HasPrefix(text, "? ") || text == "?" || strings.ContainsRune(`"'&*!{[`, rune(text[0])):
			f.isDone = true
		default:
			f.fail(offset, "no colon after %s; want key: value", excerpt(text))
		}
		return
	}
	f.readValue(offset)
}

// keyEnd returns the offset behind the colon of the key at offset, or 0 if there is no key.
func (f *causeFinder) keyEnd(offset int, text string) int {
	if q := text[0]; q == '"' || q == '\'' {
		end := strings.IndexByte(text[1:], q) + 2
		if end >= 2 && end < len(text) && text[end] == ':' && (end+1 == len(text) || text[end+1] == ' ') {
			return offset + end + 1
		}
		return 0
	}
	if found := keyText.FindString(text); found != "" {
		return offset + strings.LastIndexByte(found, ':') + 1
	}
	return 0
}

// excerpt returns the start of text for a reason.
func excerpt(text string) string {
	const most = 40
	if cut := []rune(text); len(cut) > most {
		return string(cut[:most]) + "…"
	}
	return text
}
