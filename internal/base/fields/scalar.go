package fields

import (
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// envoyproxy/ratelimit reads YAML 1.1 with go-yaml v2. This package uses go-yaml v3, which reads fewer plain words as
// booleans. The functions below read all these words as booleans, as v2 does.

// Tag returns the type of the scalar n: !!null, !!bool, !!int, !!float or !!str. If the file has a tag at n, Tag returns
// that tag.
func Tag(n *yaml.Node) string {
	tag := n.ShortTag()
	if tag == "!!str" && IsPlain(n) {
		if _, ok := ParseBool(n.Value); ok {
			return "!!bool"
		}
	}
	return tag
}

// IsPlain reports whether n is a plain scalar: n has no quotes and no tag, and is not a block.
func IsPlain(n *yaml.Node) bool {
	const otherStyles = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle | yaml.TaggedStyle
	return n.Style&otherStyles == 0
}

// ParseBool reads a YAML 1.1 boolean.
func ParseBool(s string) (value, ok bool) {
	switch s {
	case "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y":
		return true, true
	case "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N":
		return false, true
	}
	return false, false
}

// ParseInt reads a YAML 1.1 integer, such as 31, 0x1F, 0b11, 010 (octal) or 1_000.
func ParseInt(s string) (int64, bool) {
	n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 0, 64)
	return n, err == nil
}

func isInt(s string) bool {
	_, ok := ParseInt(s)
	return ok
}

// ParseText returns the text of n, a scalar that isn't null. If n has the tag !!binary, ParseText decodes the text.
func ParseText(n *yaml.Node) (string, bool) {
	if n.ShortTag() != "!!binary" {
		return n.Value, utf8.ValidString(n.Value)
	}
	b, err := base64.StdEncoding.DecodeString(n.Value)
	return string(b), err == nil && utf8.Valid(b)
}

// Display describes n for a problem: "a mapping", "a list", or the text of a scalar.
func Display(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.ShortTag() == "!!null" {
		return "null"
	}
	const maxBytes = 40
	s := Cut(n.Value, maxBytes)
	if IsPlain(n) {
		return Printable(s)
	}
	return strconv.Quote(s)
}

// Cut returns s. If s is longer than maxBytes, Cut returns the start of s and an ellipsis.
func Cut(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxBytes], "") + "…"
}

// Printable returns s. If s has characters that a terminal can't show, Printable returns s in quotes.
func Printable(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) || r == utf8.RuneError {
			return strconv.Quote(s)
		}
	}
	return s
}
