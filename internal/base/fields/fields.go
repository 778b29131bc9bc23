// Package fields reads the objects of YAML files with known fields: limits files, tests, callers, tokens and
// mappings. It reports each mistake in a file as a problem with a place and a remedy.
package fields

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"go.yaml.in/yaml/v3"
)

// Kind is the type of a field.
type Kind uint8

// The kinds of fields.
const (
	Text       Kind = iota // any scalar except a float, as the file has it
	NonEmpty               // any scalar that is not empty, as the file has it
	Flag                   // a boolean
	Count                  // an integer from Min to Max
	Ratio                  // a number above 0, at most MaxRatio
	Choice                 // one of Choices
	List                   // a list of at least Min items
	Object                 // a mapping with known fields
	AnyMapping             // a mapping with any fields
	ListOrFile             // a list of texts, or a mapping with the name of a file
	Duration               // a duration from Min to Max microseconds, like 30s
	Any                    // any value
)

// Field describes a field of an object.
type Field struct {
	Name     string
	Kind     Kind
	Choices  []string // the valid values of a Choice
	Min, Max int64    // the bounds of a Count or Duration; Min is also the smallest number of items of a List
	MaxRatio float64  // the largest value of a Ratio

	// Want describes the valid values in messages. If Want is empty, the description comes from Kind.
	Want string

	// Remedy tells the author what to write if the field is missing. If Remedy is empty, the field is optional.
	Remedy string
}

// IsRequired reports whether each object must have the field.
func (f *Field) IsRequired() bool { return f.Remedy != "" }

// Value is what Field.Read has read. The Kind of that Field decides which one field of Value is set. The items of a List
// or an Object are in the node.
type Value struct {
	Text   string // the value of a Text, NonEmpty or Choice
	Flag   bool
	Number int64 // the value of a Count; the microseconds of a Duration
	Ratio  float64
}

// Read reads n, a value of f that is not null. If n is invalid, problem is a text such as "got 1, want true or false".
func (f *Field) Read(n *yaml.Node) (v Value, problem string) {
	isScalar := n.Kind == yaml.ScalarNode
	ok := true
	tag := ""
	if isScalar {
		tag = Tag(n)
	}
	switch f.Kind {
	case Object, AnyMapping:
		ok = n.Kind == yaml.MappingNode
	case List:
		ok = n.Kind == yaml.SequenceNode
	case ListOrFile:
		ok = n.Kind == yaml.SequenceNode || n.Kind == yaml.MappingNode
	case Text:
		if tag == "!!float" || tag == "!!int" && !isInt(n.Value) {
			return v, fmt.Sprintf("got a number, want text; write %q in quotes", n.Value)
		}
		if isScalar {
			if v.Text, ok = ParseText(n); !ok {
				return Value{}, fmt.Sprintf("got %s, want text in UTF-8", Display(n))
			}
		}
		ok = isScalar
	case NonEmpty:
		v.Text, ok = n.Value, isScalar && n.Value != ""
	case Flag:
		v.Flag, ok = ParseBool(n.Value)
		ok = ok && tag == "!!bool"
	case Count:
		v.Number, ok = ParseInt(n.Value)
		ok = ok && tag == "!!int" && v.Number >= f.Min && v.Number <= f.Max
	case Ratio:
		var err error
		v.Ratio, err = strconv.ParseFloat(n.Value, 64)
		ok = err == nil && (tag == "!!float" || tag == "!!int") && v.Ratio > 0 && v.Ratio <= f.MaxRatio
	case Duration:
		duration, err := time.ParseDuration(n.Value)
		v.Number = duration.Microseconds()
		ok = err == nil && v.Number >= f.Min && v.Number <= f.Max
	case Choice:
		v.Text, ok = n.Value, slices.Contains(f.Choices, n.Value)
	}
	if ok {
		return v, ""
	}
	return Value{}, "got " + Display(n) + ", want " + f.validValuesFor(n)
}

// validValuesFor describes the valid values of f, for the message about the invalid value n. It can add a hint: "without
// quotes", or the choice that the author of n probably meant.
func (f *Field) validValuesFor(n *yaml.Node) string {
	switch {
	case f.Kind == Choice && f.Want == "":
		return OneOf(n.Value, f.Choices)
	case n.Kind == yaml.ScalarNode && !IsPlain(n) && (f.Kind == Flag || f.Kind == Count || f.Kind == Ratio):
		return f.ValidValues() + " without quotes"
	}
	return f.ValidValues()
}

// ValidValues describes the valid values of f, such as "a whole number from 1 to 9".
func (f *Field) ValidValues() string {
	if f.Want != "" {
		return f.Want
	}
	switch f.Kind {
	case Object, AnyMapping:
		return "a mapping"
	case List:
		return "a list"
	case ListOrFile:
		return "a list, or a mapping with the name of a file, as in {file: list.txt}"
	case Flag:
		return "true or false"
	case Count:
		return fmt.Sprintf("a whole number from %d to %d", f.Min, f.Max)
	case Ratio:
		return "a number over 0 and up to " + strconv.FormatFloat(f.MaxRatio, 'f', -1, 64)
	case Choice:
		return JoinOr(f.Choices)
	}
	return "text"
}

// MaxCount is the largest number of a 32-bit field.
const MaxCount = math.MaxUint32

// Names returns the names of fields.
func Names(fields []Field) []string {
	names := make([]string, len(fields))
	for i := range fields {
		names[i] = fields[i].Name
	}
	return names
}

// Nearest returns the name that the author of s probably meant, or "" if s is like no name.
func Nearest(s string, names []string) string {
	if maxBytes := 64; len(s) > maxBytes {
		return ""
	}
	nearestName, smallestDistance := "", 1+max(2, len(s)/3)
	for _, name := range names {
		distance := levenshtein.ComputeDistance(strings.ToLower(s), name)
		if isSimilar := distance <= len(name)/2; isSimilar && distance < smallestDistance {
			nearestName, smallestDistance = name, distance
		}
	}
	return nearestName
}

// OneOf returns names as a choice, and adds the name that the author of s probably meant: "read or write; did you mean
// write?"
func OneOf(s string, names []string) string {
	if nearestName := Nearest(s, names); nearestName != "" {
		return JoinOr(names) + "; did you mean " + nearestName + "?"
	}
	return JoinOr(names)
}

// JoinFirst joins the texts of the first maxTexts items of list, and adds the number of the others: "a, b, and 3 more".
func JoinFirst[T any](list []T, maxTexts int, separator string, textOf func(T) string) string {
	var texts []string
	for _, item := range list[:min(len(list), maxTexts)] {
		texts = append(texts, textOf(item))
	}
	if omittedCount := len(list) - maxTexts; omittedCount > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", omittedCount))
	}
	return strings.Join(texts, separator)
}

// JoinOr returns names in words: "a, b or c".
func JoinOr(names []string) string {
	lastIndex := len(names) - 1
	if lastIndex < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:lastIndex], ", ") + " or " + names[lastIndex]
}
