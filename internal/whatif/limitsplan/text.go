package limitsplan

import (
	"embed"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

const maxTextRules = 30 // bounds the rules in the text

//go:embed plan.tmpl
var templates embed.FS

var textTemplate = template.Must(template.New("plan.tmpl").Funcs(reportFuncs).ParseFS(templates, "plan.tmpl"))

var reportFuncs = template.FuncMap{
	"share":      func(n, total uint64) string { return fmt.Sprintf("%d (%.2f %%)", n, percent(n, total)) },
	"time":       func(t time.Time) string { return t.Format(time.RFC3339) },
	"bucket":     func(seconds float64) string { return time.Duration(seconds * float64(time.Second)).String() },
	"chart":      chartText,
	"printable":  fields.Printable,
	"limits":     RuleReport.limitsText,
	"firstRules": func(r *Report) []RuleReport { return r.Rules[:min(len(r.Rules), maxTextRules)] },
	"moreRules":  func(r *Report) int { return max(len(r.Rules)-maxTextRules, 0) },
	"row":        func(cells ...any) string { return fmt.Sprintf(strings.Repeat("%v\t", len(cells)-1)+"%v", cells...) },
}

// WriteText writes r for people.
func (r *Report) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if err := textTemplate.Execute(w, r); err != nil {
		return err
	}
	return w.Flush()
}

func (r RuleReport) limitsText() string {
	switch {
	case r.DeniedInShadow > 0:
		return fmt.Sprintf("%s, would deny %d without shadow mode", r.Limits, r.DeniedInShadow)
	case r.Shadow:
		return r.Limits + ", shadow mode"
	}
	return r.Limits
}

var bars = []rune("▁▂▃▄▅▆▇█")

// chartText returns a text with one bar for each number. A dot stands for 0.
func chartText(numbers []uint64) string {
	highestNumber := slices.Max(append(slices.Clip(numbers), 0))
	var b strings.Builder
	for _, n := range numbers {
		if n == 0 {
			b.WriteRune('·')
			continue
		}
		b.WriteRune(bars[min(int(n*uint64(len(bars))/(highestNumber+1)), len(bars)-1)])
	}
	return b.String()
}
