package limitsdiff

import (
	_ "embed"
	"io"
	"text/template"

	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

//go:embed report.tmpl
var reportText string

var reportTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"counts":      countKinds,
	"maxRequests": func() int { return maxRequests },
}).Parse(reportText))

// WriteText writes r for people.
func (r *Report) WriteText(out io.Writer) error { return reports.Text(out, reportTemplate, r) }

// countKinds returns the number of changes of each kind, and of all changes. It returns nil without changes.
func countKinds(changes []Change) map[string]int {
	if len(changes) == 0 {
		return nil
	}
	numbers := map[string]int{"all": len(changes), "same": 0, "looser": 0, "tighter": 0, "mixed": 0}
	for _, c := range changes {
		numbers[string(c.Kind)]++
	}
	return numbers
}
