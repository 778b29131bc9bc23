package limitsfile

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

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
			if r.extension {
				mark = " +"
			}
			fmt.Fprintf(&b, "| `%s`%s | %s | %s |\n", r.name, mark, r.valuesText(), fieldHelp[r.name])
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// valuesText describes the values that the field can have.
func (r *row) valuesText() string {
	switch r.kind {
	case textKind:
		if r.name == "unit" {
			return codeList(limit.UnitNames())
		}
		return "text"
	case flagKind:
		return codeList([]string{"true", "false"})
	case countKind:
		return fmt.Sprintf("number from %d to %d", r.minValue, uint32(math.MaxUint32))
	case ratioKind:
		return "number above 0, at most " + strconv.FormatFloat(r.maxValue, 'f', -1, 64)
	case choiceKind:
		return codeList(r.choices)
	case listKind:
		return "list"
	case entriesKind:
		return "list of texts, or a mapping with `file`"
	case durationKind:
		return fmt.Sprintf("`%s` to `%s`", limit.DurationText(r.minMicros), limit.DurationText(r.maxMicros))
	}
	return "mapping"
}

// codeList joins words as code.
func codeList(words []string) string { return "`" + strings.Join(words, "`, `") + "`" }
