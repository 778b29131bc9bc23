package boundedyaml

import (
	"bytes"
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// piece is a part of a list: whole items.
type piece struct {
	data []byte
	line int // of the first byte, from 1
}

// cut splits a document whose last field at the root is a list in block style. head is the document without the
// items.
//
// A line break before an item is certainly between two items, except inside quotes and brackets. A cut there makes
// invalid YAML, and the caller then parses the whole document.
func cut(data []byte, field string, pieceNodes int) (head []byte, pieces []piece, ok bool) {
	start := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(field) + `:[ \t]*([ \t]#.*)?\r?\n`).FindIndex(data)
	if start == nil {
		return nil, nil, false
	}
	head, rest := data[:start[1]], data[start[1]:]
	line := 1 + bytes.Count(head, []byte("\n"))
	indent := -1 // of the items
	current := piece{rest[:0], line}
	nodes := 0
	for len(rest) > 0 {
		text := rest
		if end := bytes.IndexByte(rest, '\n'); end >= 0 {
			text = rest[:end+1]
		}
		content := bytes.TrimLeft(text, " ")
		column := len(text) - len(content)
		isItem := bytes.HasPrefix(content, []byte("-")) && (len(content) == 1 || content[1] <= ' ')
		switch {
		case len(bytes.TrimSpace(content)) == 0 || content[0] == '#':
		case indent < 0 && isItem:
			indent = column
		case column < max(indent, 0) || indent < 0 || column == indent && !isItem:
			return nil, nil, false
		case column == indent && nodes >= pieceNodes:
			pieces = append(pieces, current)
			current = piece{rest[:0], line}
			nodes = 0
		}
		count, _ := countNodes(text, len(text)*2+1)
		nodes += count - 1
		current.data = current.data[:len(current.data)+len(text)]
		rest = rest[len(text):]
		line++
	}
	return head, append(pieces, current), indent >= 0
}

// mayHaveAnchors reports whether an & in data can start an anchor. Without anchors, pieces are independent.
func mayHaveAnchors(data []byte) bool {
	for i := 0; ; i++ {
		next := bytes.IndexByte(data[i:], '&')
		if next < 0 {
			return false
		}
		i += next
		if i == 0 || !isWordByte(data[i-1]) {
			return true
		}
	}
}

func isWordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

type parsedPiece struct {
	items []*yaml.Node
	err   error
}

// parseAhead parses several pieces at the same time. next returns the items of the next one.
func (d *Document) parseAhead() (next func(i int) ([]*yaml.Node, error), stop func()) {
	queue := make(chan chan parsedPiece, d.bounds.Parsers-1) // in the order of the pieces
	stopped := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for i := range d.pieces {
			result := make(chan parsedPiece, 1)
			select {
			case queue <- result:
			case <-stopped:
				return
			}
			running.Go(func() {
				items, err := d.parsePiece(i)
				result <- parsedPiece{items, err}
			})
		}
	})
	next = func(int) ([]*yaml.Node, error) {
		p := <-<-queue
		return p.items, p.err
	}
	return next, func() {
		close(stopped)
		running.Wait()
	}
}

// countNodes returns about how many nodes the parser makes of data. It stops above most, in the returned line.
//
// The count is exact for rules in block style and in JSON. It is too high for punctuation in text. For lists of
// pairs such as [a: b], it is too low by a third.
func countNodes(data []byte, most int) (count, line int) {
	count, line = 1, 1
	hasText, hasColon := false, false // of the item of a list in brackets
	for i, c := range data {
		if c <= ' ' {
			if c == '\n' {
				line++
			}
			continue
		}
		switch c {
		case ':':
			if isWordEnd(data, i+1) || i > 0 && strings.IndexByte(`"'}]`, data[i-1]) >= 0 {
				count += 2 // a key and its value
				hasColon = true
			}
			hasText = true
		case '?':
			if isWordEnd(data, i+1) {
				count += 2
			}
			hasText = true
		case '-':
			if isWordEnd(data, i+1) {
				count++
			}
			hasText = true
		case '[', '{':
			count++
			hasText, hasColon = false, false
		case ',', ']', '}':
			if hasText && !hasColon {
				count += 2 // a word in {} is a key without a value
			}
			hasText, hasColon = false, false
		default:
			hasText = true
		}
		if count > most {
			return count, line
		}
	}
	return count, line
}

// isWordEnd reports whether a plain word can't go on at data[i].
func isWordEnd(data []byte, i int) bool {
	return i >= len(data) || data[i] <= ' ' || data[i] >= 0x80 || strings.IndexByte(",[]{}", data[i]) >= 0
}
