package limitsfile

import (
	"strconv"
	"strings"
)

// Problem is something wrong in a limits file. Parts that are unknown are zero.
type Problem struct {
	File         string
	Line, Column int // from 1

	// Path is the way to the descriptor: `shop > service=checkout > path`.
	Path string

	// Reason says what is wrong, and what would be right.
	Reason string
}

// String is file:line:column: path: reason.
func (p Problem) String() string {
	var b strings.Builder
	part := func(s, end string) {
		if s != "" {
			b.WriteString(s + end)
		}
	}
	place := p.File
	if p.Line > 0 {
		place += ":" + strconv.Itoa(p.Line)
		if p.Column > 0 {
			place += ":" + strconv.Itoa(p.Column)
		}
	}
	part(strings.TrimPrefix(place, ":"), ": ")
	part(p.Path, ": ")
	part(p.Reason, "")
	return b.String()
}

// fileLine is file:line, or the file alone if the line isn't known.
func fileLine(file string, line int) string {
	if line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(line)
}

// inLine says where in the same file something is.
func inLine(line int) string {
	if line == 0 {
		return "there"
	}
	return "in line " + strconv.Itoa(line)
}

// Problems is a list of them; as an error it shows one a line.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}
