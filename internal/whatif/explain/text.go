package explain

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"strings"
	"text/template"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
	"github.com/seed-81f232ab/rls/limit"
)

//go:embed report.tmpl
var reportText string

// textTemplate makes the text of a report. WriteText replaces the functions of timeFuncs for each report.
var textTemplate = template.Must(template.New("").Funcs(textFuncs).Funcs(timeFuncs(new(Report))).Parse(reportText))

var textFuncs = template.FuncMap{
	"add":       func(a, b int) int { return a + b },
	"max":       func(a, b int64) int64 { return max(a, b) },
	"printable": fields.Printable,
	"quoted":    descriptors.QuoteIfNeeded,
	"outage":    (*Report).outageAnswer,
	"reason":    reasonText,
	"domains":   (*UnknownDomain).names,
	"unlisted":  Level.unlistedValues,
	"extra":     Limit.extraFields,
	"origins":   Limit.origins,
	"place":     bracketedPlace,
	"lines":     func(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") },
}

func timeFuncs(r *Report) template.FuncMap {
	return template.FuncMap{"window": r.windowText, "moment": r.timeText, "offline": func() bool { return r.Offline }}
}

// WriteText writes r for people.
func (r *Report) WriteText(w io.Writer) error {
	return reports.Text(w, template.Must(textTemplate.Clone()).Funcs(timeFuncs(r)), r)
}

func bracketedPlace(place string) string {
	if place == "" {
		return ""
	}
	return " (" + place + ")"
}

func (u *UnknownDomain) names() string {
	var names []string
	for _, name := range u.Domains {
		names = append(names, fields.Printable(name))
	}
	if unlistedCount := u.Count - len(names); unlistedCount > 0 {
		names = append(names, fmt.Sprintf("and %d more", unlistedCount))
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// unlistedValues returns the number of descriptors with the same key and another value that Others does not have.
func (l Level) unlistedValues() int {
	n := l.OtherValues
	for _, c := range l.Others {
		if c.Difference == descriptors.OtherValue.String() {
			n--
		}
	}
	return n
}

func (l Limit) origins() string {
	var notes []string
	if len(l.FromOverride) > 0 {
		notes = append(notes, strings.Join(l.FromOverride, ", ")+" from the override")
	}
	if len(l.FromDefaults) > 0 {
		notes = append(notes, fmt.Sprintf("%s from the defaults%s", strings.Join(l.FromDefaults, ", "), bracketedPlace(l.DefaultsPlace)))
	}
	return strings.Join(notes, "; ")
}

// extraFields returns the fields of l that differ from their defaults and that the text l.Limit does not show.
func (l Limit) extraFields() string {
	algorithm, ok := limit.ParseAlgorithm(l.Algorithm)
	if !ok {
		return "" // l is unlimited
	}
	mode, _ := limit.ParseFailureMode(l.OnBackendFailure)
	return strings.Join(limitsfile.ExtraFields(&limit.Limit{Spec: limit.Spec{
		Algorithm: algorithm, ChargeDenied: l.ChargeDenied, OnBackendFailure: mode, FallbackRatio: l.FallbackRatio,
		Lease: l.Lease, LeaseWaste: l.LeaseWaste,
	}}, ", %s %v"), "")
}

// clockText returns the time of day of moment. It adds the date if the report is from another day.
func (r *Report) clockText(moment *time.Time) string {
	const clockError = 50 * time.Millisecond // the clock of Redis is known so exactly; without it, 23:00:00 could be 22:59:59
	second := moment.Add(clockError)
	if second.Format(time.DateOnly) == r.Time.Format(time.DateOnly) {
		return second.Format(time.TimeOnly)
	}
	return second.Format(time.DateTime)
}

// windowText returns the start and the end of a window: "14:00:00 to 15:00:00 UTC (in 12s)". If they are on different days,
// both have a date.
func (r *Report) windowText(start, end *time.Time) string {
	startText, endText := r.clockText(start), r.timeText(end)
	if len(startText) > len(time.TimeOnly) && !strings.HasPrefix(endText, "20") {
		endText = r.Time.Format(time.DateOnly) + " " + endText
	}
	return startText + " to " + endText
}

// timeText returns moment and its distance from the time of the report: "15:04:05 UTC (in 12s)".
func (r *Report) timeText(moment *time.Time) string {
	distance := moment.Sub(r.Time).Round(time.Second)
	text := "in " + spanText(distance)
	switch {
	case distance < 0:
		text = spanText(-distance) + " ago"
	case distance == 0 && !moment.After(r.Time):
		text = "just now"
	}
	return fmt.Sprintf("%s UTC (%s)", r.clockText(moment), text)
}

// spanText returns a duration in two units: "25d19h", "1h0m" or "8m38s".
func spanText(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.String()
}

// outageAnswer returns the first answer that would come from the fallback, or nil.
func (r *Report) outageAnswer() *Answer {
	for _, d := range r.Descriptors {
		for _, l := range d.Limits {
			if l.NextHit != nil && l.NextHit.Source == backend.SourceFallback.String() {
				return l.NextHit
			}
		}
	}
	return nil
}

func reasonText(reason string) string {
	return cmp.Or(map[string]string{
		backend.ReasonOutage.String():      "it has just failed",
		backend.ReasonBreakerOpen.String(): "it keeps failing (breaker open)",
		backend.ReasonLate.String():        "it has not answered in time",
		backend.ReasonOverload.String():    "this replica has too many hits in its queue (overload)",
	}[reason], reason)
}
