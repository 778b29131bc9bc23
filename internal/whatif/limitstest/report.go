package limitstest

import (
	_ "embed"
	"io"
	"strings"
	"text/template"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

// Report is the result of all test files.
type Report struct {
	Passed   int            `json:"passed"` // the number of passed tests
	Failed   int            `json:"failed"`
	Files    []FileReport   `json:"files"`
	Coverage CoverageReport `json:"coverage"`
}

// FileReport is the result of one test file.
type FileReport struct {
	File   string       `json:"file"`
	Limits []string     `json:"limits"`
	Tests  []TestReport `json:"tests"`
	Error  string       `json:"error,omitempty"` // the reason why no test ran: problems in the test file or its limits files
}

// TestReport is the result of one test. The test passed if it has no failures.
type TestReport struct {
	Name     string    `json:"name"`
	Line     int       `json:"line"`
	Seconds  float64   `json:"seconds"` // the duration of the test
	Failures []Failure `json:"failures,omitempty"`
}

// Failure is a request with an answer that differs from the wanted answer.
type Failure struct {
	Line        int        `json:"line"`
	Domain      string     `json:"domain"`
	Descriptors []string   `json:"descriptors"`
	Time        time.Time  `json:"time"`       // the time of the virtual clock
	Repetition  int        `json:"repetition"` // the number of the repetition, from 1
	Repeat      int        `json:"repeat"`
	Mismatches  []Mismatch `json:"mismatches"`

	Explanation *explain.Report `json:"explanation,omitempty"` // the explanation just before the call; only the first failure of a test has an explanation
}

// Mismatch is a field of an answer with a value that differs from the wanted value.
type Mismatch struct {
	Field string `json:"field"`
	Got   string `json:"got"`
	Want  string `json:"want"`
}

// NewReport returns the report about the files.
func NewReport(files []FileReport, coverage *Coverage) *Report {
	r := &Report{Files: files, Coverage: coverage.Report()}
	for _, f := range files {
		r.Passed += f.Passed()
		r.Failed += f.Failed()
	}
	return r
}

// Failed returns the number of failed tests.
func (f FileReport) Failed() int { return len(f.Tests) - f.Passed() }

// Passed returns the number of passed tests.
func (f FileReport) Passed() (n int) {
	for _, t := range f.Tests {
		if len(t.Failures) == 0 {
			n++
		}
	}
	return n
}

const maxUnmet = 20 // bounds the unmet rules that the text lists

//go:embed report.tmpl
var reportText string

var reportTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"printable": fields.Printable,
	"join":      func(descriptors []string) string { return strings.Join(descriptors, " ") },
	"indented":  indentedText,
	"maxUnmet":  func() int { return maxUnmet },
	"more":      func(rules []RulePlace) int { return max(len(rules)-maxUnmet, 0) },
}).Parse(reportText))

// WriteText writes r for people. If isVerbose is false, it lists only failed tests.
func (r *Report) WriteText(out io.Writer, isVerbose bool) error {
	return reports.Text(out, reportTemplate, struct {
		*Report
		Verbose bool
	}{r, isVerbose})
}

func indentedText(r *explain.Report) string {
	var text strings.Builder
	_ = r.WriteText(&text) // a Builder returns no error
	return "      " + strings.ReplaceAll(text.String(), "\n", "\n      ")
}
