package limitstest

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
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
		for _, t := range f.Tests {
			if len(t.Failures) > 0 {
				r.Failed++
			} else {
				r.Passed++
			}
		}
	}
	return r
}

// maxUnmet bounds the rules without a test that WriteText lists.
const maxUnmet = 20

// WriteText writes r for people. All tests are listed if verbose is set, otherwise only failed
// tests.
func (r *Report) WriteText(out io.Writer, verbose bool) error {
	w := bufio.NewWriter(out)
	for i := range r.Files {
		f := &r.Files[i]
		if f.Error != "" {
			fmt.Fprintf(w, "%s\nFAIL  %s: no test ran\n", f.Error, f.File)
			continue
		}
		failed := 0
		for j := range f.Tests {
			t := &f.Tests[j]
			switch {
			case len(t.Failures) > 0:
				failed++
				fmt.Fprintf(w, "FAIL  %s:%d: %s\n", f.File, t.Line, fields.Printable(t.Name))
				for k := range t.Failures {
					t.Failures[k].write(w, f.File)
				}
			case verbose:
				fmt.Fprintf(w, "ok    %s:%d: %s\n", f.File, t.Line, fields.Printable(t.Name))
			}
		}
		result := "ok  "
		if failed > 0 {
			result = "FAIL"
		}
		fmt.Fprintf(w, "%s  %s: %d of %d tests passed\n", result, f.File, len(f.Tests)-failed, len(f.Tests))
	}
	c := &r.Coverage
	if c.Rules == 0 {
		return w.Flush()
	}
	fmt.Fprintf(w, "coverage: %d of %d rules (%.1f %%)\n", c.Met, c.Rules, c.Percent)
	for i, rule := range c.Unmet {
		if i == maxUnmet {
			fmt.Fprintf(w, "  and %d more; --json lists all\n", len(c.Unmet)-i)
			break
		}
		fmt.Fprintf(w, "  no test meets %s (%s)\n", fields.Printable(rule.Rule), rule.Place)
	}
	return w.Flush()
}

// write writes the failure, indented.
func (f *Failure) write(w io.Writer, file string) {
	where := fmt.Sprintf("%s:%d", file, f.Line)
	if len(f.Descriptors) > 0 {
		where += fmt.Sprintf(": request %s in domain %s, at %s", fields.Printable(strings.Join(f.Descriptors, " ")), fields.Printable(f.Domain), f.Time.Format("2006-01-02 15:04:05.999999"))
	}
	if f.Repeat > 1 {
		where += fmt.Sprintf(", %d of %d", f.Repetition, f.Repeat)
	}
	fmt.Fprintf(w, "  %s\n", where)
	for _, m := range f.Mismatches {
		fmt.Fprintf(w, "    %s: got %s, want %s\n", m.Field, fields.Printable(m.Got), fields.Printable(m.Want))
	}
	if f.Explanation == nil {
		return
	}
	var text bytes.Buffer
	_ = f.Explanation.WriteText(&text) // a Buffer returns no error
	fmt.Fprintln(w, "    explanation of this request, just before it:")
	for line := range strings.Lines(text.String()) {
		if strings.TrimSpace(line) != "" {
			fmt.Fprintf(w, "      %s", line)
		}
	}
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
	for i := range r.Files {
		f := &r.Files[i]
		suite := junitSuite{Name: f.File, Tests: len(f.Tests)}
		if f.Error != "" {
			suite.Tests, suite.Errors = 1, 1
			suite.Cases = append(suite.Cases, junitCase{
				Name: "file", ClassName: f.File, File: f.File, Time: "0", Error: &junitFailure{Message: "the file has mistakes", Text: f.Error},
			})
			all.Tests++
			all.Errors++
		}
		seconds := 0.0
		for j := range f.Tests {
			t := &f.Tests[j]
			c := junitCase{Name: t.Name, ClassName: f.File, File: f.File, Line: t.Line, Time: fmt.Sprintf("%.6f", t.Seconds)}
			if len(t.Failures) > 0 {
				suite.Failures++
				first := t.Failures[0].Mismatches[0]
				var text strings.Builder
				for k := range t.Failures {
					t.Failures[k].write(&text, f.File)
				}
				c.Failure = &junitFailure{Message: fmt.Sprintf("%s: got %s, want %s", first.Field, first.Got, first.Want), Text: text.String()}
			}
			seconds += t.Seconds
			suite.Cases = append(suite.Cases, c)
		}
		suite.Time = fmt.Sprintf("%.6f", seconds)
		all.Suites = append(all.Suites, suite)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
