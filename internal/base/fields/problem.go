package fields

import (
	"slices"
	"strconv"
	"strings"
)

// Problem is a mistake in a limits file. Unknown fields are zero.
type Problem struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`   // from 1
	Column int    `json:"column,omitempty"` // from 1

	// Path is the path to the descriptor: `shop > service=checkout > path`.
	Path string `json:"path,omitempty"`

	// Reason is the mistake and its remedy.
	Reason string `json:"reason"`
}

// String returns file:line:column: path: reason.
func (p Problem) String() string {
	place := FileLine(p.File, p.Line)
	if p.Line > 0 && p.Column > 0 {
		place += ":" + strconv.Itoa(p.Column)
	}
	parts := []string{strings.TrimPrefix(place, ":"), p.Path, p.Reason}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// FileLine returns file:line, or the file alone if the line is 0.
func FileLine(file string, line int) string {
	if line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(line)
}

// Problems is a list of problems. Its error text has one problem a line.
type Problems []Problem

// Error implements error.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}
