package limitsfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	// DefaultMaxFileBytes is about 150,000 rules.
	DefaultMaxFileBytes = 16 << 20

	// DefaultMaxNodes is about what a file of DefaultMaxFileBytes has.
	DefaultMaxNodes = 2_000_000

	// MaxDepth bounds how deep descriptors, and metadata, are nested.
	MaxDepth = 100

	// maxLimits bounds the limits of one descriptor.
	maxLimits = 100

	// maxProblems bounds the problems reported of one file.
	maxProblems = 1000

	// lastLine sorts a problem behind all others of its file.
	lastLine = 1 << 30
)

// document is a limits file while it is read.
type document struct {
	file     string
	maxBytes int
	maxNodes int
	nodes    int // visited so far

	root         *object
	domain       *Domain
	rootPosition *position // of the domain

	errs, warns []pendingProblem
}

func newDocument(file string, o Options) *document {
	return &document{
		file:     file,
		maxBytes: cmp.Or(o.MaxFileBytes, DefaultMaxFileBytes),
		maxNodes: cmp.Or(o.MaxNodes, DefaultMaxNodes),
	}
}

// pendingProblem is a problem whose path is made when the file is read.
type pendingProblem struct {
	Problem
	pos *position
}

func (d *document) errorf(n *yaml.Node, pos *position, format string, args ...any) {
	d.errs = d.add(d.errs, n, pos, fmt.Sprintf(format, args...))
}

func (d *document) warnf(n *yaml.Node, pos *position, format string, args ...any) {
	d.warns = d.add(d.warns, n, pos, fmt.Sprintf(format, args...))
}

func (d *document) add(list []pendingProblem, n *yaml.Node, pos *position, reason string) []pendingProblem {
	p := pendingProblem{Problem{File: d.file, Reason: reason}, pos}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	if len(list) > maxProblems || d.nodes > d.maxNodes { // fields that are not read look missing
		return list
	}
	if len(list) == maxProblems {
		p = pendingProblem{Problem: Problem{File: d.file, Line: lastLine, Reason: fmt.Sprintf("more problems follow; the first %d are shown", maxProblems)}}
	}
	return append(list, p)
}

// problems returns list in the order of lines, without duplicates.
func problems(list []pendingProblem) Problems {
	var ps Problems
	for _, p := range list {
		p.Path = p.pos.path()
		ps = append(ps, p.Problem)
	}
	slices.SortStableFunc(ps, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if last := len(ps) - 1; last >= 0 && ps[last].Line == lastLine {
		ps[last].Line = 0
	}
	// A problem behind an alias is found once for each use of the alias.
	return slices.CompactFunc(ps, func(a, b Problem) bool {
		return a.Line > 0 && a.Line == b.Line && a.Column == b.Column && a.Reason == b.Reason
	})
}

// visit counts a node and reports whether to go on.
func (d *document) visit(n *yaml.Node) bool {
	if d.nodes == d.maxNodes {
		d.errorf(n, nil, "file has more than %d keys and values (aliases count at each use)", d.maxNodes)
	}
	d.nodes++
	return d.nodes <= d.maxNodes && len(d.errs) <= maxProblems
}

// parse returns the root of the first YAML document of f. It returns nil after reporting
// a mistake.
func (d *document) parse(f File) *yaml.Node {
	if len(f.Data) > d.maxBytes {
		d.errorf(nil, nil, "file is %d bytes; maximum is %d", len(f.Data), d.maxBytes)
		return nil
	}
	if invalid := firstInvalidByte(f.Data); invalid != nil {
		d.errorf(invalid, nil, "%s", invalid.Value)
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(f.Data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		d.errorf(nil, nil, "file is empty: domain is missing")
		return nil
	case err != nil:
		d.errs = append(d.errs, syntaxError(f.Name, err))
		return nil
	}
	var next yaml.Node
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		second := &next
		if err != nil {
			second = nil
		}
		d.warnf(second, nil, "only the first YAML document of a file is read; the others are ignored")
	}
	if len(doc.Content) == 0 {
		return nil
	}
	return doc.Content[0]
}

// firstInvalidByte returns the place of the first byte that YAML doesn't allow, with the
// reason as its value; nil if there is none. The YAML library checks UTF-16.
func firstInvalidByte(data []byte) *yaml.Node {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil
	}
	line, column := 1, 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return &yaml.Node{Line: line, Column: column, Value: fmt.Sprintf("byte 0x%02X is not UTF-8", data[i])}
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r == 0x7f:
			return &yaml.Node{Line: line, Column: column, Value: fmt.Sprintf("control character 0x%02X is not allowed", r)}
		case r == '\n':
			line, column = line+1, 0
		}
		i += size
		column++
	}
	return nil
}

var yamlErrorLine = regexp.MustCompile(`^line (\d+): `)

// syntaxError returns a problem with the line from a message of the YAML library.
func syntaxError(file string, err error) pendingProblem {
	p := pendingProblem{Problem: Problem{File: file}}
	reason := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlErrorLine.FindStringSubmatch(reason); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
		reason = strings.TrimPrefix(reason, m[0])
	}
	p.Reason = "not valid YAML: " + reason
	return p
}
