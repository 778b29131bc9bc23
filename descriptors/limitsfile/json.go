package limitsfile

import (
	"bytes"
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// jsonReader reads JSON as YAML nodes with lines and columns. A YAML parser would reject
// some escapes and white space of JSON.
type jsonReader struct {
	text      []byte
	tokens    *json.Decoder
	offset    int // of the next byte to read
	line, col int
}

// readJSON returns the root of valid JSON.
func readJSON(text []byte) *yaml.Node {
	r := &jsonReader{text: text, tokens: json.NewDecoder(bytes.NewReader(text)), line: 1, col: 1}
	r.tokens.UseNumber()
	return r.node()
}

// node reads a value or the name of a field. It returns nil at the end of an object or
// list.
func (r *jsonReader) node() *yaml.Node {
	r.skip()
	line, col := r.line, r.col
	token, err := r.tokens.Token()
	if err != nil {
		return nil // not for valid JSON
	}
	n := &yaml.Node{Kind: yaml.ScalarNode}
	switch t := token.(type) {
	case json.Delim:
		switch t {
		case '}', ']':
			return nil
		case '{':
			n.Kind = yaml.MappingNode
		case '[':
			n.Kind = yaml.SequenceNode
		}
		for item := r.node(); item != nil; item = r.node() {
			n.Content = append(n.Content, item)
		}
	case string:
		n = yamlString(t)
	case json.Number:
		n.Value = t.String()
	case bool:
		n = yamlFlag(t)
	default:
		n.Value = "null"
	}
	n.Line, n.Column = line, col
	return n
}

// skip moves to the next token.
func (r *jsonReader) skip() {
	for end := int(r.tokens.InputOffset()); r.offset < len(r.text); r.offset++ {
		c := r.text[r.offset]
		if r.offset >= end && bytes.IndexByte([]byte(" \t\r\n,:"), c) < 0 {
			return
		}
		switch {
		case c == '\n':
			r.line, r.col = r.line+1, 1
		case c&0xC0 != 0x80: // not within a character
			r.col++
		}
	}
}
