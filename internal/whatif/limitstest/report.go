package limitstest

import (
	"bytes"
	_ "embed"
	"fmt"
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
	Passed   int            `json:"passed"` // tests
	Failed   int            `json:"failed"`
	Files    []FileReport   `json:"files"`
	Coverage CoverageReport `json:"coverage"`
}

// FileReport is the result of one test file.
type FileReport struct {
	File   string       `json:"file"`
	Limits []string     `json:"limits"`
	Tests  []TestReport `json:"tests"`
	Error  string       `json:"error,omitempty"` // why no test ran: mistakes in the test file or its limits files
}

// TestReport is the result of one test. The test passed if it has no failures.
type TestReport struct {
	Name     string    `json:"name"`
	Line     int       `json:"line"`
	Seconds  float64   `json:"seconds"` // that the test took
	Failures []Failure `json:"failures,omitempty"`
}

// Failure is a request whose answer is not the wanted one.
type Failure struct {
	Line        int        `json:"line"`
	Domain      string     `json:"domain"`
	Descriptors []string   `json:"descriptors"`
	Time        time.Time  `json:"time"`       // of the virtual clock
	Repetition  int        `json:"repetition"` // from 1
	Repeat      int        `json:"repeat"`
	Mismatches  []Mismatch `json:"mismatches"`

	Explanation *explain.Report `json:"explanation,omitempty"` // just before the call; only in the first failure
}

// Mismatch is a field of an answer that has not the wanted value.
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

const maxUnmet = 20

//go:embed report.tmpl
var reportText string

var reportTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"printable": fields.Printable,
	"maxUnmet":  func() int { return maxUnmet },
	"more":      func(rules []UnmetRule) int { return max(len(rules)-maxUnmet, 0) },
}).Parse(reportText))

// WriteText writes r for people. Unless verbose is set, only failed tests are listed.
func (r *Report) WriteText(out io.Writer, verbose bool) error {
	return reports.Text(out, reportTemplate, struct {
		*Report
		Verbose bool
	}{r, verbose})
}

// Text describes the failure in lines with an indent. file is the name of the test file.
func (f Failure) Text(file string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "  %s:%d", file, f.Line)
	if len(f.Descriptors) > 0 {
		fmt.Fprintf(&text, ": request %s in domain %s, at %s",
			fields.Printable(strings.Join(f.Descriptors, " ")), fields.Printable(f.Domain), f.Time.Format("2006-01-02 15:04:05.999999"))
	}
	if f.Repeat > 1 {
		fmt.Fprintf(&text, ", %d of %d", f.Repetition, f.Repeat)
	}
	text.WriteByte('\n')
	for _, m := range f.Mismatches {
		fmt.Fprintf(&text, "    %s: got %s, want %s\n", m.Field, fields.Printable(m.Got), fields.Printable(m.Want))
	}
	if f.Explanation == nil {
		return text.String()
	}
	text.WriteString("    explanation of this request, just before it:\n")
	var explanation bytes.Buffer
	_ = f.Explanation.WriteText(&explanation) // a Buffer returns no error
	for line := range bytes.Lines(explanation.Bytes()) {
		if len(bytes.TrimSpace(line)) > 0 {
			fmt.Fprintf(&text, "      %s", line)
		}
	}
	return text.String()
}
