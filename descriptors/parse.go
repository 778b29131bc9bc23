package descriptors

import (
	"bytes"
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
	// MaxFileBytes bounds a limits file: some 150,000 rules.
	MaxFileBytes = 16 << 20

	// maxNodes bounds the keys, values and list items read from a file, those
	// reached through aliases again and again counted each time.
	maxNodes = 2_000_000

	// maxDepth bounds how deep descriptors, and likewise metadata, are nested.
	maxDepth = 100

	// maxLimits bounds the limits of one descriptor.
	maxLimits = 100

	// maxProblems bounds what is reported of one file.
	maxProblems = 1000

	// lastLine puts a problem behind all others of its file.
	lastLine = 1 << 30
)

// document is a limits file while it is compiled.
type document struct {
	file  string
	nodes int // visited so far

	root   *object
	domain *Domain
	top    *node // stands for the domain

	errs, warns []pending
}

// pending is a problem whose path is not known yet: the key of a descriptor can
// stand after what is wrong in it.
type pending struct {
	Problem
	at *node
}

func (d *document) errorf(n *yaml.Node, at *node, format string, args ...any) {
	d.errs = d.add(d.errs, n, at, fmt.Sprintf(format, args...))
}

func (d *document) warnf(n *yaml.Node, at *node, format string, args ...any) {
	d.warns = d.add(d.warns, n, at, fmt.Sprintf(format, args...))
}

func (d *document) add(list []pending, n *yaml.Node, at *node, reason string) []pending {
	p := pending{Problem{File: d.file, Reason: reason}, at}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	if len(list) > maxProblems || d.nodes > maxNodes { // what is left unread looks wrong
		return list
	}
	if len(list) == maxProblems {
		p = pending{Problem: Problem{File: d.file, Line: lastLine, Reason: fmt.Sprintf("there is more; %d are shown", maxProblems)}}
	}
	return append(list, p)
}

// problems finishes list: in order of lines, each once.
func problems(list []pending) Problems {
	var ps Problems
	for _, p := range list {
		p.Path = p.at.path()
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
	// What stands behind an alias is met once for each use.
	return slices.CompactFunc(ps, func(a, b Problem) bool {
		return a.Line > 0 && a.Line == b.Line && a.Column == b.Column && a.Reason == b.Reason
	})
}

// visit counts a node and tells whether to go on.
func (d *document) visit(n *yaml.Node) bool {
	if d.nodes == maxNodes {
		d.errorf(n, nil, "the file has more than %d keys and values (aliases count each time they are used)", maxNodes)
	}
	d.nodes++
	return d.nodes <= maxNodes && len(d.errs) <= maxProblems
}

// parse reads the first YAML document of f; nil if there is none or it's broken.
func (d *document) parse(f File) *yaml.Node {
	if len(f.Data) > MaxFileBytes {
		d.errorf(nil, nil, "the file has %d bytes; %d are the most", len(f.Data), MaxFileBytes)
		return nil
	}
	if at := unreadable(f.Data); at != nil {
		d.errorf(at, nil, "%s", at.Value)
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(f.Data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		d.errorf(nil, nil, "the file is empty: domain is missing")
		return nil
	case err != nil:
		d.errs = append(d.errs, syntaxError(f.Name, err))
		return nil
	}
	var next yaml.Node
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		at := &next
		if err != nil {
			at = nil
		}
		d.warnf(at, nil, "only the first YAML document of a file is read; what follows it is ignored")
	}
	if len(doc.Content) == 0 {
		return nil
	}
	return doc.Content[0]
}

// unreadable finds the first byte that YAML doesn't allow: its place, and the
// reason as the value. UTF-16 is left to the YAML library.
func unreadable(data []byte) *yaml.Node {
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

// syntaxError takes the place out of a message of the YAML library.
func syntaxError(file string, err error) pending {
	p := pending{Problem: Problem{File: file}}
	reason := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlErrorLine.FindStringSubmatch(reason); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
		reason = strings.TrimPrefix(reason, m[0])
	}
	p.Reason = "not valid YAML: " + reason
	return p
}
