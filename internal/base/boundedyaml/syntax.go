package boundedyaml

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

const notYAML = "not valid YAML: "

// blockError matches errors whose line is the line before the block with the mistake.
var blockError = regexp.MustCompile(`^did not find expected (key|'-' indicator|',' or|node content|<)`)

// unknownAnchor matches the error of an alias without an anchor.
var unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)

// syntaxProblem returns the problem in an error of the parser. lineShift is the line number from the
// parser minus the line number in the file. The problem has a line of the file.
func (d *Document) syntaxProblem(err error, lineShift int) error {
	p := &Problem{Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
	if _, scanErr := fmt.Sscanf(p.Reason, "line %d:", &p.Line); scanErr == nil {
		_, p.Reason, _ = strings.Cut(p.Reason, ": ")
		p.Line -= lineShift
	}
	if m := unknownAnchor.FindStringSubmatch(p.Reason); m != nil {
		p = aliasProblem(d.data, m[1])
	} else if found := findCause(d.data); found != nil {
		p = found
	} else if blockError.MatchString(p.Reason) {
		p.Line++
		p.Reason += " in the block that starts here"
	}
	p.Line = min(max(p.Line, 1), 1+bytes.Count(d.data, []byte("\n")))
	p.Reason = notYAML + p.Reason
	return p
}

// aliasProblem returns the problem of an alias without an anchor.
func aliasProblem(data []byte, name string) *Problem {
	p := &Problem{Reason: fmt.Sprintf("unknown anchor: got *%s, want &%s at a value above it, or quotes around a text that starts with *", name, name)}
	use := regexp.MustCompile(`(?m)(?:^|[\s\[{,:-])(\*` + regexp.QuoteMeta(name) + `)(?:[\s\]},:]|$)`)
	if at := use.FindSubmatchIndex(data); at != nil {
		start := bytes.LastIndexByte(data[:at[2]], '\n') + 1
		p.Line, p.Column = 1+bytes.Count(data[:at[2]], []byte("\n")), 1+utf8.RuneCount(data[start:at[2]])
	}
	return p
}
