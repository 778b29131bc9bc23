package boundedyaml

import (
	"bytes"
	"regexp"
	"strings"
)

// bracket is an open [ or {.
type bracket struct {
	offset   int
	hasColon bool // the current item has a colon
}

// flow is a list or mapping in brackets while it is read.
type flow struct {
	*causeFinder
	open     []bracket
	position int
	hasValue bool // the current item or the part after its colon has a value
}

// flowEnd returns the offset behind the bracket that closes the list or mapping at start.
func (f *causeFinder) flowEnd(start int) (end int, ok bool) {
	r := &flow{causeFinder: f, position: start}
	for r.position < len(f.data) && f.cause.offset < 0 {
		if r.readToken(); len(r.open) == 0 {
			return r.position, f.cause.offset < 0
		}
	}
	if f.cause.offset < 0 {
		r.failUnclosedBracket()
	}
	return 0, false
}

func (r *flow) failUnclosedBracket() {
	offset := r.open[len(r.open)-1].offset
	r.fail(offset, "%c opens here and is not closed; want %c", r.data[offset], closingBracket(r.data[offset]))
}

func closingBracket(open byte) byte {
	if open == '[' {
		return ']'
	}
	return '}'
}

// readToken reads a bracket, a comma, a colon, a text or white space.
func (r *flow) readToken() {
	offset := r.position
	r.position++
	switch c := r.data[offset]; {
	case c == '\n':
		r.checkLine(r.position)
	case c == ' ' || c == '\t' || c == '\r':
		if r.position < len(r.data) && r.data[r.position] == '#' {
			r.position = r.lineEnd(offset)
		}
	case c == '[' || c == '{':
		if r.startValue(offset) {
			r.open = append(r.open, bracket{offset: offset})
			r.hasValue = false
		}
	case c == ']' || c == '}':
		r.close(offset)
	case c == ',':
		r.open[len(r.open)-1].hasColon = false
		r.hasValue = false
	case c == ':' && r.isColon(offset):
		r.readColon(offset)
	case !r.startValue(offset):
	case c == '"' || c == '\'':
		r.readQuotedText(offset)
	default:
		r.readPlainText(offset)
	}
}

// startValue records that a value starts at offset. It returns false if the comma before the value is
// missing.
func (r *flow) startValue(offset int) bool {
	if len(r.open) > 0 && r.hasValue {
		r.fail(offset, "no comma before %s; want a comma between two values", excerpt(r.word(offset)))
		return false
	}
	r.hasValue = true
	return true
}

// word returns the text at offset up to white space, and at most 100 bytes of the text.
func (r *flow) word(offset int) string {
	text := r.data[offset:min(offset+100, len(r.data))]
	if i := bytes.IndexAny(text, " \t\r\n,[]{}"); i > 0 {
		text = text[:i]
	}
	return string(text)
}

// isColon reports whether the colon at offset ends a key.
func (r *flow) isColon(offset int) bool {
	return r.hasValue && offset > 0 && strings.IndexByte(`"'`, r.data[offset-1]) >= 0 || isWordEnd(r.data, offset+1)
}

func (r *flow) readColon(offset int) {
	top := &r.open[len(r.open)-1]
	if top.hasColon {
		r.fail(offset, "the text has a second colon; put quotes around the text, or a comma before the second key")
	}
	top.hasColon, r.hasValue = true, false
}

func (r *flow) close(offset int) {
	top := r.open[len(r.open)-1]
	if want := closingBracket(r.data[top.offset]); r.data[offset] != want {
		r.fail(top.offset, "%c opens here, and %c in line %d closes it; want %c", r.data[top.offset], r.data[offset], r.line(offset), want)
	}
	r.open = r.open[:len(r.open)-1]
	r.hasValue = true
}

// readQuotedText reads a text in quotes.
func (r *flow) readQuotedText(offset int) {
	end, ok := r.quotedEnd(offset)
	if !ok {
		return
	}
	r.position = end
	if bytes.IndexByte(r.data[offset:end], '\n') < 0 {
		return
	}
	if _, text := r.rest(end); text != "" && strings.IndexByte(",:]}", text[0]) < 0 {
		r.failUnclosed(offset)
	}
}

// readPlainText reads a text without quotes, up to a character that ends it.
func (r *flow) readPlainText(offset int) {
	if c := r.data[offset]; c == '&' || c == '!' {
		r.readProperty(offset)
		return
	}
	i := offset
	for ; i < len(r.data) && strings.IndexByte("\n,[]{}", r.data[i]) < 0; i++ {
		if r.data[i] == ':' && isWordEnd(r.data, i+1) || r.data[i] == '#' && r.data[i-1] <= ' ' {
			break
		}
	}
	r.position = max(i, r.position)
	text := strings.TrimRight(string(r.data[offset:r.position]), " \t\r")
	if strings.IndexByte("@`%|>", text[0]) >= 0 || text[0] == '*' && !alias.MatchString(text) {
		r.failSpecial(offset, text)
	}
}

// readProperty reads an anchor or a tag. Its value follows.
func (r *flow) readProperty(offset int) {
	word := r.word(offset)
	if r.data[offset] == '&' && !propertyPattern.MatchString(word) {
		r.failSpecial(offset, word)
	}
	r.position = offset + len(word)
	r.hasValue = false
}

// blockItemLine matches a line of a list in block style. blockKeyLine matches a line with a key.
var (
	blockItemLine = regexp.MustCompile(`^- +\S`)
	blockKeyLine  = regexp.MustCompile(`^[\w-]+:(\s|$)`)
)

// checkLine reports an unclosed bracket if the line looks like the next entry of the file.
func (r *flow) checkLine(start int) {
	if len(r.open) == 0 || start >= len(r.data) {
		return
	}
	offset, text := r.rest(start)
	if blockItemLine.MatchString(text) || offset-start <= r.indent() && blockKeyLine.MatchString(text) {
		r.failUnclosedBracket()
	}
	if text == "" {
		r.position = r.lineEnd(start) // a comment
	}
}
