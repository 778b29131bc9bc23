package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
	"github.com/seed-81f232ab/rls/service"
)

//go:embed answers.tmpl
var answersTemplate string

// answers has a template for each kind of answer that a command prints.
var answers = template.Must(template.New("").Funcs(template.FuncMap{
	"text":    func(v any) string { return printable(fmt.Sprint(v)) },
	"dash":    func(v any) string { return textOrDash(fmt.Sprint(v)) },
	"json":    oneLine,
	"kind":    kindText,
	"field":   fieldText,
	"counted": live.Count[int],
	"join":    strings.Join,
	"entries": decisionlog.FormatEntries,
	"off":     offText,
	"notes": func(o admin.Override) string {
		return switchNotes(o.SetBy, o.Reason, parseTime(o.ExpiresAt), time.Now())
	},
	"fields": func(l *admin.List) []admin.Override {
		return slices.Concat(l.ShadowMode, l.Switches, l.Rules, l.Overrides)
	},
	"since": func(moment time.Time) string { return relativeTime(time.Until(moment)) },
	"moment": func(timestamp, textIfUnset string) string {
		if moment := parseTime(timestamp); !moment.IsZero() {
			return relativeTime(time.Until(moment))
		}
		return textIfUnset
	},
	"seconds":       func(seconds float64) string { return formatDuration(time.Duration(math.Ceil(seconds)) * time.Second) },
	"micros":        func(micros int64) string { return (time.Duration(micros) * time.Microsecond).String() },
	"versionBefore": func(version int64) int64 { return version - 1 },

	// The functions below are for the template "top" only.
	"line":      func(text string) string { return printable(strings.ReplaceAll(text, "\n", "; ")) },
	"mark":      func(level live.Level) string { return levelMarks[level] },
	"clock":     func(moment time.Time) string { return moment.Local().Format("15:04:05") },
	"rate":      page.FormatRate,
	"perSecond": func(x float64) string { return page.FormatRate(live.Value(x)) },
	"share":     page.FormatShare,
	"duration":  page.FormatDuration,
	"megabytes": func(bytes int64) string { return fmt.Sprintf("%.0f MB", float64(bytes)/1e6) },
	"spark":     func(s live.Series) string { return sparkline(s.Points, 20) },
	"keysNote":  keysNote,
}).Parse(answersTemplate))

func printAs(out io.Writer, asJSON bool, v any, printText func(io.Writer) error) error {
	if asJSON {
		return reports.JSON(out, v)
	}
	return printText(newColourWriter(out))
}

// printAnswer prints v as JSON, or as text with the template name of answers. It aligns the columns of a table.
func printAnswer(out io.Writer, asJSON bool, v any, name string) error {
	return printAs(out, asJSON, v, func(out io.Writer) error {
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		if err := reports.Text(table, answers.Lookup(name), v); err != nil {
			return err
		}
		return table.Flush()
	})
}

func kindText(k override.Kind) string { return printable(strings.ReplaceAll(string(k), "_", " ")) }

// fieldText names an override by its target, and every other change by its kind and target.
func fieldText(k override.Kind, target string) string {
	if k == override.KindOverride {
		return printable(target)
	}
	return strings.TrimSpace(kindText(k) + " " + printable(cmp.Or(target, "of all")))
}

// oneLine returns stored JSON as one line of at most 100 characters.
func oneLine(value json.RawMessage) string {
	const maxLength = 100
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return "-"
	}
	text := []rune(printable(b.String()))
	if len(text) > maxLength {
		return string(text[:maxLength-1]) + "…"
	}
	return string(text)
}

// offText describes a switch that has taken limits out of force, such as
// "OFF: shop > tenant=acme, by alice, ends in 59m, reason: incident".
func offText(s *service.Switch, now time.Time) string {
	return "OFF: " + printable(s.Path) + switchNotes(s.Author, s.Reason, s.Expires, now)
}

// switchNotes describes who set a switch, when the switch ends, and why it was set. A zero end means never.
func switchNotes(author, reason string, end, now time.Time) string {
	text := ", by " + textOrDash(author) + ", without an end"
	if !end.IsZero() {
		text = ", by " + textOrDash(author) + ", ends " + relativeTime(end.Sub(now))
	}
	if reason != "" {
		text += ", reason: " + printable(reason)
	}
	return text
}

// parseTime parses a time of an answer. It returns the zero Time if timestamp is empty or invalid.
func parseTime(timestamp string) time.Time {
	moment, _ := time.Parse(time.RFC3339, timestamp)
	return moment
}

// relativeTime describes the moment d from now, such as "in 59m" or, for a negative d, "12s ago".
func relativeTime(d time.Duration) string {
	if d < 0 {
		return formatDuration(-d) + " ago"
	}
	return "in " + formatDuration(d)
}

// formatDuration formats d in days and hours, hours and minutes, minutes, or seconds, such as "3d4h" or "59m".
func formatDuration(d time.Duration) string {
	minutes := d.Round(time.Minute)
	switch {
	case d.Round(time.Second) < time.Minute:
		return d.Round(time.Second).String()
	case minutes < 24*time.Hour:
		return strings.Replace(strings.TrimSuffix(minutes.String(), "0s"), "h0m", "h", 1)
	}
	hours := d.Round(time.Hour) / time.Hour
	return strings.Replace(fmt.Sprintf("%dd%dh", hours/24, hours%24), "d0h", "d", 1)
}

// printable returns s, in quotes if s has characters that a terminal can't show.
var printable = fields.Printable

func textOrDash(s string) string { return cmp.Or(printable(s), "-") }
