package limitsfile

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// WriteFieldsPage writes docs/limits-fields.md: the fields of each place in a limits file.
func WriteFieldsPage(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Fields of limits files

This page lists all fields of a limits file. ` + "`make docs`" + ` writes this page from the parser.
[limits.md](limits.md) explains how the fields work together. Fields marked + exist only in rls, and
not in envoyproxy/ratelimit. Each field can be left out or null, except ` + "`domain`, `key` and `unit`" + `.
` + "With `algorithm: concurrency`, `unit` is an error.\n")
	for i, place := range levelNames {
		l := level(1 << i)
		if l&fileLevels == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## Fields of %s\n\n| field | values | meaning |\n|---|---|---|\n", place)
		for _, r := range schema {
			if r.levels&l == 0 {
				continue
			}
			mark := ""
			if r.isExtension {
				mark = " +"
			}
			fmt.Fprintf(&b, "| `%s`%s | %s | %s |\n", r.Name, mark, r.valuesText(), r.help)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// valuesText describes the values that the field can have.
func (r *row) valuesText() string {
	switch r.Kind {
	case fields.Text:
		if r.Name == "unit" {
			return codeList(limit.UnitNames())
		}
		return "text"
	case fields.Flag:
		return codeList([]string{"true", "false"})
	case fields.Count:
		return fmt.Sprintf("number from %d to %d", r.Min, uint32(math.MaxUint32))
	case fields.Ratio:
		return "number above 0, at most " + strconv.FormatFloat(r.MaxRatio, 'f', -1, 64)
	case fields.Choice:
		return codeList(r.Choices)
	case fields.List:
		return "list"
	case fields.Entries:
		return "list of texts, or a mapping with `file`"
	case fields.Duration:
		return fmt.Sprintf("`%s` to `%s`", limit.DurationText(r.Min), limit.DurationText(r.Max))
	}
	return "mapping"
}

// codeList joins words as code.
func codeList(words []string) string { return "`" + strings.Join(words, "`, `") + "`" }
