package boundedyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// findCause returns the likely cause why the parser rejects data, or nil. It tries small edits near the place where the
// parser stops. If the parser reads more lines with an edit, the edit has removed the cause, and findCause tries no more.
func findCause(data []byte) *Problem {
	if bytes.IndexByte(data, 0) >= 0 || len(data) > maxParsedBytes/2 {
		return nil // data is UTF-16 or too large
	}
	unreadBytes := countUnreadBytes(data)
	if unreadBytes < 0 {
		return nil
	}
	f := &causeFinder{data: data, unreadBytes: unreadBytes, bytesLeft: maxParsedBytes - len(data), triedEdits: map[edit]bool{}}
	f.lines = f.readLines()
	lines := f.lines
	lastLines := lines[:min(len(lines), maxLastLines)]
	_ = slices.ContainsFunc(lastLines, func(l line) bool { return f.tryPatterns(l, linePatterns) }) ||
		slices.ContainsFunc(lastLines, func(l line) bool { return f.tryIndent(l) }) ||
		slices.ContainsFunc(lines[:min(len(lines), maxBracketLines)], func(l line) bool { return f.tryBrackets(l.start) }) ||
		slices.ContainsFunc(lines, func(l line) bool { return f.tryPatterns(l, quotePatterns) }) ||
		slices.ContainsFunc(lastLines, func(l line) bool { return f.tryPatterns(l, fallbackPatterns) })
	return f.cause
}

const (
	maxParsedBytes = 4 << 20 // bounds the bytes that the parser reads in all attempts

	maxLastLines    = 3   // the number of lines before the place where the parser stops; most mistakes are in these lines
	maxBracketLines = 100 // the number of lines in which tryBrackets looks for an open bracket
)

// lineReader returns one line at a time, so the parser reads at most one line after the mistake.
type lineReader struct{ unreadData []byte }

func (r *lineReader) Read(p []byte) (int, error) {
	if len(r.unreadData) == 0 {
		return 0, io.EOF
	}
	n := len(r.unreadData)
	if end := bytes.IndexByte(r.unreadData, '\n'); end >= 0 {
		n = end + 1
	}
	n = copy(p, r.unreadData[:n])
	r.unreadData = r.unreadData[n:]
	return n, nil
}

// countUnreadBytes returns the number of bytes after the line where the parser stops, or -1 for valid data.
func countUnreadBytes(data []byte) int {
	r := &lineReader{data}
	if err := yaml.NewDecoder(r).Decode(new(yaml.Node)); err == nil || errors.Is(err, io.EOF) {
		return -1
	}
	return len(r.unreadData)
}

type causeFinder struct {
	data        []byte
	unreadBytes int    // the number of bytes after the line where the parser stops
	lines       []line // the lines that the parser has read, from the last to the first
	bytesLeft   int    // the number of bytes that the parser may still read in further attempts
	triedEdits  map[edit]bool
	cause       *Problem // nil until an edit shows the cause
}

type edit struct {
	start, end int
	text       string
}

// tryEdit parses the data with edit e. If the parser reads more lines than before, tryEdit sets f.cause to reason at offset,
// and returns true.
func (f *causeFinder) tryEdit(offset int, e edit, reason string) bool {
	if f.triedEdits[e] || f.bytesLeft < len(f.data) {
		return false
	}
	f.triedEdits[e] = true
	f.bytesLeft -= len(f.data)
	editedData := slices.Concat(f.data[:e.start], []byte(e.text), f.data[e.end:])
	if countUnreadBytes(editedData) >= f.unreadBytes {
		return false
	}
	start := bytes.LastIndexByte(f.data[:offset], '\n') + 1
	f.cause = &Problem{f.lineNumber(offset), 1 + utf8.RuneCount(f.data[start:offset]), reason}
	return true
}

func (f *causeFinder) lineNumber(offset int) int {
	return 1 + bytes.Count(f.data[:offset], []byte("\n"))
}

// line is a line with content, without its line break.
type line struct {
	start int // the offset of the line in the data
	text  string
}

// readLines returns the lines with content that the parser has read, from the last to the first.
func (f *causeFinder) readLines() (lines []line) {
	for readData := f.data[:len(f.data)-f.unreadBytes]; len(readData) > 0; {
		start := bytes.LastIndexByte(readData[:len(readData)-1], '\n') + 1
		text := strings.TrimRight(string(readData[start:]), "\r\n")
		if content := strings.TrimSpace(text); content != "" && content[0] != '#' {
			lines = append(lines, line{start, text})
		}
		readData = readData[:start]
	}
	return lines
}

// pattern describes a mistake in a line. mistake matches a line with the mistake, and the group "at" is the place of the
// mistake. fixes are templates of package regexp for the corrected line. reason can name groups, such as $at.
type pattern struct {
	mistake *regexp.Regexp
	reason  string
	fixes   []string
}

func newPattern(mistake, reason string, fixes ...string) pattern {
	return pattern{regexp.MustCompile(mistake), reason, fixes}
}

// Parts of patterns.
const (
	beforeValue = `(?P<before>.*?(?:[:-] +|[\[{,] *))`
	badStart    = "[@`%&*!|>]"

	unquotedReason = "a value can't start with $first unless it is in quotes; want '$at'"
)

var linePatterns = []pattern{
	newPattern(`^ *(?P<at>\t).*`, "a tab is in the indentation; want spaces only", ""),
	newPattern(`^(?P<at><<<<<<<|>>>>>>>|=======)( .*)?$`, "$at marks a merge conflict; keep one of the versions, and remove the marks", ""),
	newPattern(`^(?P<before> *(?:- +)*)(?P<key>[A-Za-z_][\w.-]*)(?P<at>:)(?P<value>[^\s/].*)$`,
		"no space after the colon of $key:$value; want $key: $value", "${before}${key}: ${value}"),
	newPattern(`^(?P<before> *(?:- +)*)(?P<at>-)(?P<item>[A-Za-z_].*:.*)$`, "no space after the - of -$item; want - $item", "${before}- ${item}"),
	newPattern(`^(?P<indent> *)(?P<key>[\w.-]+:) +(?P<at>- .*)$`,
		"an item of a list is in the line of its key; want it in the next line", "${indent}${key}\n${indent}  ${at}"),
	newPattern(`^(?P<before> *(?:- +)*(?:[\w.-]+: +)?)(?P<at>(?P<first>`+badStart+`).*|(?P<first>[\[{]).*[\]}][^\s\]},:#].*)$`, unquotedReason, "${before}'${at}'"),
	newPattern("^"+beforeValue+`(?P<at>(?P<first>`+badStart+`)[^,\]}]*)(?P<after>.*)$`, unquotedReason, "${before}'${at}'${after}"),
	newPattern(`^(?P<before>.*?: +)(?P<start>[^"'\s:,\[{|>&*!][^:,]*)(?P<at>:)(?P<end> [^,\]}]*)?(?P<after>[,\]} ].*)?$`,
		"the text has a second colon; want quotes: '$start:$end'", "${before}${start}${end}${after}"),
	newPattern(`^(?P<before> *(?:- +)*)(?P<at>[\w.-]+) *$`, "no colon after $at; want key: value", "${before}${at}:"),
	newPattern(`(?P<at>\\)(?P<char>[^0abtnvfre "/\\N_LPxuU])`, `\$char is no escape in double quotes; want single quotes, or \\$char`, `\\${char}`),
	newPattern("^"+beforeValue+`(?P<text>'(?:[^']|'')*') *(?P<at>[^\s,:\]}#].*)$`,
		"text follows the closing quote; inside single quotes, write '' for '", "${before}${text}"),
	newPattern("^"+beforeValue+`(?P<text>"(?:[^"\\]|\\.)*") *(?P<at>[^\s,:\]}#].*)$`,
		`text follows the closing quote; inside double quotes, write \" for "`, "${before}${text}"),
}

var quotePatterns = []pattern{
	newPattern(`^(?P<before>(?:.*[\s\[{,:])?)(?P<at>["'])(?P<after>[^"']*)$`,
		"the quote $at opens here and is not closed; want $at at the end of the value", "${before}${after}", "${before}${at}${after}${at}"),
}

var fallbackPatterns = []pattern{
	newPattern(`^ *(?P<at>- ).*$`, "an item of a list can't be a key; want it below a key that ends in a colon, indented as the other items", ""),
	newPattern(`^(?P<before> *)(?P<at>["'{\[\w][^\s,]*)`, "no comma before $at; want a comma between two values", "${before}, ${at}"),
}

// tryPatterns tries the fixes of the patterns that match line l. It returns true if a fix shows the cause.
func (f *causeFinder) tryPatterns(l line, patterns []pattern) bool {
	for _, p := range patterns {
		groups := p.mistake.FindStringSubmatchIndex(l.text)
		if groups == nil {
			continue
		}
		group := func(name string) string {
			const maxLength = 40
			text := []rune(string(p.mistake.ExpandString(nil, "${"+name+"}", l.text, groups)))
			if len(text) > maxLength {
				text = append(text[:maxLength], '…')
			}
			return string(text)
		}
		mistakeStart := groups[2*p.mistake.SubexpIndex("at")]
		for _, fix := range p.fixes {
			if f.tryEdit(l.start+mistakeStart, edit{l.start, l.start + len(l.text), p.mistake.ReplaceAllString(l.text, fix)}, os.Expand(p.reason, group)) {
				return true
			}
		}
	}
	return false
}

// entryStart matches the start of a line: the spaces of its indentation, and the dashes of items.
var entryStart = regexp.MustCompile(`^( *)((?:- +)*)`)

// tryIndent tries the indentations of the lines above l for l. It returns true if an indentation shows the cause.
func (f *causeFinder) tryIndent(l line) bool {
	// indents returns the number of spaces before the text of l, and the number of spaces and dashes before its key.
	indents := func(l line) (spaces, beforeKey int) {
		groups := entryStart.FindStringSubmatch(l.text)
		return len(groups[1]), len(groups[0])
	}
	indent, keyIndent := indents(l)
	triedIndents := []int{indent}
	for _, lineAbove := range f.lines {
		spaces, want := indents(lineAbove)
		if keyIndent > indent { // l starts an item
			want = spaces
		}
		if lineAbove.start >= l.start || slices.Contains(triedIndents, want) {
			continue
		}
		triedIndents = append(triedIndents, want)
		unit := "spaces"
		if indent == 1 {
			unit = "space"
		}
		reason := fmt.Sprintf("wrong indentation: got %d %s, want %d as in line %d", indent, unit, want, f.lineNumber(lineAbove.start))
		if f.tryEdit(l.start+indent, edit{l.start, l.start + indent, strings.Repeat(" ", want)}, reason) {
			return true
		}
		if spaces == 0 {
			break
		}
	}
	return false
}

// tryBrackets tries to close, to change or to remove a bracket after start. It returns true if an edit shows the cause.
func (f *causeFinder) tryBrackets(start int) bool {
	var openBrackets []int // the offsets of the brackets that are not closed
	for i := start; i < len(f.data)-f.unreadBytes; i++ {
		switch c := f.data[i]; c {
		case '"', '\'':
			if end := bytes.IndexByte(f.data[i+1:], c); end >= 0 && !isWordByte(f.data[max(i-1, 0)]) {
				i += 1 + end
			}
		case '#':
			if f.data[max(i-1, 0)] <= ' ' {
				i += len(bytes.SplitN(f.data[i:], []byte("\n"), 2)[0])
			}
		case '[', '{':
			openBrackets = append(openBrackets, i)
		case ']', '}':
			if len(openBrackets) == 0 {
				return f.tryEdit(i, edit{i, i + 1, ""}, fmt.Sprintf("%c has no opening bracket or quote before it; remove it, or put the value into quotes", c))
			}
			innermostBracket := openBrackets[len(openBrackets)-1]
			if want := closingBracket(f.data[innermostBracket]); want != string(c) {
				reason := fmt.Sprintf("%c opens here, and %c in line %d closes it; want %s", f.data[innermostBracket], c, f.lineNumber(i), want)
				return f.tryEdit(innermostBracket, edit{i, i, want}, reason) || f.tryEdit(innermostBracket, edit{i, i + 1, want}, reason)
			}
			openBrackets = openBrackets[:len(openBrackets)-1]
		}
	}
	if len(openBrackets) == 0 {
		return false
	}
	closingText := ""
	for _, offset := range slices.Backward(openBrackets) {
		closingText += closingBracket(f.data[offset])
	}
	innermostBracket := openBrackets[len(openBrackets)-1]
	reason := fmt.Sprintf("%c opens here and is not closed; want %s", f.data[innermostBracket], closingBracket(f.data[innermostBracket]))
	end := len(f.data)
	if i := bytes.IndexAny(f.data[innermostBracket:], "\r\n"); i >= 0 {
		end = innermostBracket + i
	}
	return f.tryEdit(innermostBracket, edit{end, end, closingText}, reason) || f.tryEdit(innermostBracket, edit{len(f.data), len(f.data), closingText}, reason)
}

func closingBracket(open byte) string {
	if open == '[' {
		return "]"
	}
	return "}"
}

const notYAML = "not valid YAML: "

// blockError matches the errors of the parser that name the line before the block with the mistake.
var blockError = regexp.MustCompile(`^did not find expected (key|'-' indicator|',' or|node content|<)`)

var unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)

// syntaxProblem returns the problem that an error of the parser reports. A line in err is the line in the file plus
// lineShift.
func (d *Document) syntaxProblem(err error, lineShift int) error {
	p := &Problem{Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
	if _, scanErr := fmt.Sscanf(p.Reason, "line %d:", &p.Line); scanErr == nil {
		_, p.Reason, _ = strings.Cut(p.Reason, ": ")
		p.Line -= lineShift
	}
	if groups := unknownAnchor.FindStringSubmatch(p.Reason); groups != nil {
		p = aliasProblem(d.data, groups[1])
	} else if cause := findCause(d.data); cause != nil {
		p = cause
	} else if blockError.MatchString(p.Reason) {
		p.Line++
		p.Reason += " in the block that starts here"
	}
	p.Line = min(max(p.Line, 1), 1+bytes.Count(d.data, []byte("\n")))
	p.Reason = notYAML + p.Reason
	return p
}

func aliasProblem(data []byte, name string) *Problem {
	p := &Problem{Reason: fmt.Sprintf("unknown anchor: got *%s, want &%s at a value above it, or quotes around a text that starts with *", name, name)}
	alias := regexp.MustCompile(`(?m)(?:^|[\s\[{,:-])(\*` + regexp.QuoteMeta(name) + `)(?:[\s\]},:]|$)`)
	if match := alias.FindSubmatchIndex(data); match != nil {
		start := bytes.LastIndexByte(data[:match[2]], '\n') + 1
		p.Line, p.Column = 1+bytes.Count(data[:match[2]], []byte("\n")), 1+utf8.RuneCount(data[start:match[2]])
	}
	return p
}
