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
		r.failOpen()
	}
	return 0, false
}

func (r *flow) failOpen() {
	at := r.open[len(r.open)-1].offset
	r.fail(at, "%c opens here and is not closed; want %c", r.data[at], closing(r.data[at]))
}

func closing(open byte) byte {
	if open == '[' {
		return ']'
	}
	return '}'
}

// readToken reads a bracket, a comma, a colon, a text or white space.
func (r *flow) readToken() {
	at := r.position
	r.position++
	switch c := r.data[at]; {
	case c == '\n':
		r.checkLine(r.position)
	case c == ' ' || c == '\t' || c == '\r':
		if r.position < len(r.data) && r.data[r.position] == '#' {
			r.position = r.lineEnd(at)
		}
	case c == '[' || c == '{':
		if r.startValue(at) {
			r.open = append(r.open, bracket{offset: at})
			r.hasValue = false
		}
	case c == ']' || c == '}':
		r.close(at)
	case c == ',':
		r.open[len(r.open)-1].hasColon = false
		r.hasValue = false
	case c == ':' && r.isColon(at):
		r.colon(at)
	case !r.startValue(at):
	case c == '"' || c == '\'':
		r.quoted(at)
	default:
		r.plain(at)
	}
}

// startValue notes a value at offset at. It reports false after a missing comma.
func (r *flow) startValue(at int) bool {
	if len(r.open) > 0 && r.hasValue {
		r.fail(at, "no comma before %s; want a comma between two values", excerpt(r.word(at)))
		return false
	}
	r.hasValue = true
	return true
}

// word returns the text at offset up to white space, and at most 100 bytes of the text.
func (r *flow) word(at int) string {
	text := r.data[at:min(at+100, len(r.data))]
	if i := bytes.IndexAny(text, " \t\r\n,[]{}"); i > 0 {
		text = text[:i]
	}
	return string(text)
}

// isColon reports whether the colon at offset at ends a key.
func (r *flow) isColon(at int) bool {
	return r.hasValue && at > 0 && strings.IndexByte(`"'`, r.data[at-1]) >= 0 || isWordEnd(r.data, at+1)
}

func (r *flow) colon(at int) {
	top := &r.open[len(r.open)-1]
	if top.hasColon {
		r.fail(at, "the text has a second colon; want quotes around the text, or a comma before its key")
	}
	top.hasColon, r.hasValue = true, false
}

func (r *flow) close(at int) {
	top := r.open[len(r.open)-1]
	if want := closing(r.data[top.offset]); r.data[at] != want {
		r.fail(top.offset, "%c opens here, and %c in line %d closes it; want %c", r.data[top.offset], r.data[at], r.line(at), want)
	}
	r.open = r.open[:len(r.open)-1]
	r.hasValue = true
}

// quoted reads a text in quotes.
func (r *flow) quoted(at int) {
	end, ok := r.quotedEnd(at)
	if !ok {
		return
	}
	r.position = end
	if bytes.IndexByte(r.data[at:end], '\n') < 0 {
		return
	}
	if _, text := r.rest(end); text != "" && strings.IndexByte(",:]}", text[0]) < 0 {
		r.failUnclosed(at)
	}
}

// plain reads a text without quotes, up to a character that ends it.
func (r *flow) plain(at int) {
	if c := r.data[at]; c == '&' || c == '!' {
		r.property(at)
		return
	}
	i := at
	for ; i < len(r.data) && strings.IndexByte("\n,[]{}", r.data[i]) < 0; i++ {
		if r.data[i] == ':' && isWordEnd(r.data, i+1) || r.data[i] == '#' && r.data[i-1] <= ' ' {
			break
		}
	}
	r.position = max(i, r.position)
	text := strings.TrimRight(string(r.data[at:r.position]), " \t\r")
	if strings.IndexByte("@`%|>", text[0]) >= 0 || text[0] == '*' && !alias.MatchString(text) {
		r.failSpecial(at, text)
	}
}

// property reads an anchor or a tag. Its value follows.
func (r *flow) property(at int) {
	word := r.word(at)
	if r.data[at] == '&' && !property.MatchString(word) {
		r.failSpecial(at, word)
	}
	r.position = at + len(word)
	r.hasValue = false
}

// flowItem matches a line that belongs to a list in block style, and flowKey a line with a key.
var (
	flowItem = regexp.MustCompile(`^- +\S`)
	flowKey  = regexp.MustCompile(`^[\w-]+:(\s|$)`)
)

// checkLine reports a line inside brackets that looks like the next entry after them.
func (r *flow) checkLine(start int) {
	if len(r.open) == 0 || start >= len(r.data) {
		return
	}
	offset, text := r.rest(start)
	if flowItem.MatchString(text) || offset-start <= r.indent() && flowKey.MatchString(text) {
		r.failOpen()
	}
	if text == "" {
		r.position = r.lineEnd(start) // a comment
	}
}
