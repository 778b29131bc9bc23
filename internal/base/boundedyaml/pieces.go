package boundedyaml

import (
	"bytes"
	"regexp"
	"strings"
)

// piece is the text of some neighbouring items of a list.
type piece struct {
	data []byte
	line int // the line of the first byte of data; the first line of the file is 1
}

// cutList splits the document in data. head is the document without the items of field, and pieces have the items. ok is
// true only if field is the last field at the root, and is a list in block style. A piece ends after pieceNodes nodes.
//
// cutList cuts at a line break before an item. A line inside quotes or brackets can look like an item. A cut before such a
// line makes an invalid piece, so the caller then parses the whole document.
func cutList(data []byte, field string, pieceNodes int) (head []byte, pieces []piece, ok bool) {
	start := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(field) + `:[ \t]*([ \t]#.*)?\r?\n`).FindIndex(data)
	if start == nil {
		return nil, nil, false
	}
	head, remainingData := data[:start[1]], data[start[1]:]
	line := 1 + bytes.Count(head, []byte("\n"))
	indent := -1 // the indentation of the items; -1 before the first item
	currentPiece := piece{remainingData[:0], line}
	nodes := 0
	for len(remainingData) > 0 {
		text := remainingData // the next line
		if end := bytes.IndexByte(remainingData, '\n'); end >= 0 {
			text = remainingData[:end+1]
		}
		content := bytes.TrimLeft(text, " ") // the line without its indentation
		column := len(text) - len(content)
		isItem := bytes.HasPrefix(content, []byte("-")) && (len(content) == 1 || content[1] <= ' ')
		switch {
		case len(bytes.TrimSpace(content)) == 0 || content[0] == '#':
		case indent < 0 && isItem:
			indent = column
		case column < max(indent, 0) || indent < 0 || column == indent && !isItem:
			return nil, nil, false
		case column == indent && nodes >= pieceNodes:
			pieces = append(pieces, currentPiece)
			currentPiece = piece{remainingData[:0], line}
			nodes = 0
		}
		count, _ := countNodes(text, len(text)*2+1)
		nodes += count - 1
		currentPiece.data = currentPiece.data[:len(currentPiece.data)+len(text)]
		remainingData = remainingData[len(text):]
		line++
	}
	return head, append(pieces, currentPiece), indent >= 0
}

// mayHaveAnchors reports whether an & in data can start an anchor. Without anchors, each piece can be parsed alone.
func mayHaveAnchors(data []byte) bool {
	for i := 0; ; i++ {
		distance := bytes.IndexByte(data[i:], '&')
		if distance < 0 {
			return false
		}
		i += distance
		if i == 0 || !isWordByte(data[i-1]) {
			return true
		}
	}
}

func isWordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

// countNodes estimates the number of nodes that the parser makes of data. When count exceeds maxCount, it stops. line is
// the line where it has stopped.
//
// The count is exact for rules in block style and in JSON. The count is too high if texts have punctuation such as commas.
// For lists of pairs such as [a: b], the count is too low by a third.
func countNodes(data []byte, maxCount int) (count, line int) {
	count, line = 1, 1
	hasText, hasColon := false, false // describe the current item of a list in brackets
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
		if count > maxCount {
			return count, line
		}
	}
	return count, line
}

// isWordEnd reports whether a plain word ends before data[i].
func isWordEnd(data []byte, i int) bool {
	return i >= len(data) || data[i] <= ' ' || data[i] >= 0x80 || strings.IndexByte(",[]{}", data[i]) >= 0
}
