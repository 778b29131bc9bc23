package limitstest

import (
	"bytes"
	_ "embed"
	"encoding/xml"
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

	// Error is why the tests did not run: mistakes in the test file or in its limits files.
	Error string `json:"error,omitempty"`
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

	// Explanation explains the request as it was just before the call. Only the first failure
	// of a test has it.
	Explanation *explain.Report `json:"explanation,omitempty"`
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

// maxUnmet bounds the rules without a test that WriteText lists.
const maxUnmet = 20

//go:embed report.tmpl
var reportText string

var reportTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"printable": fields.Printable,
	"maxUnmet":  func() int { return maxUnmet },
	"more":      func(rules []UnmetRule) int { return max(len(rules)-maxUnmet, 0) },
}).Parse(reportText))

// WriteText writes r for people. All tests are listed if verbose is set, otherwise only failed
// tests.
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

// The elements of JUnit XML.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Time     string      `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name      string        `xml:"name,attr"`
		ClassName string        `xml:"classname,attr"`
		File      string        `xml:"file,attr"`
		Line      int           `xml:"line,attr"`
		Time      string        `xml:"time,attr"`
		Failure   *junitFailure `xml:"failure"`
		Error     *junitFailure `xml:"error"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes r as JUnit XML.
func (r *Report) WriteJUnit(w io.Writer) error {
	all := junitSuites{Tests: r.Passed + r.Failed, Failures: r.Failed}
	for _, f := range r.Files {
		suite := junitSuite{Name: f.File, Tests: len(f.Tests), Failures: f.Failed()}
		if f.Error != "" {
			suite.Tests, suite.Errors = 1, 1
			suite.Cases = append(suite.Cases, junitCase{
				Name: "file", ClassName: f.File, File: f.File, Time: "0", Error: &junitFailure{Message: "the file has mistakes", Text: f.Error},
			})
			all.Tests++
			all.Errors++
		}
		seconds := 0.0
		for _, t := range f.Tests {
			c := junitCase{Name: t.Name, ClassName: f.File, File: f.File, Line: t.Line, Time: fmt.Sprintf("%.6f", t.Seconds)}
			for i, failure := range t.Failures {
				if i == 0 {
					m := failure.Mismatches[0]
					c.Failure = &junitFailure{Message: fmt.Sprintf("%s: got %s, want %s", m.Field, m.Got, m.Want)}
				}
				c.Failure.Text += failure.Text(f.File)
			}
			seconds += t.Seconds
			suite.Cases = append(suite.Cases, c)
		}
		suite.Time = fmt.Sprintf("%.6f", seconds)
		all.Suites = append(all.Suites, suite)
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, text)
	return err
}
