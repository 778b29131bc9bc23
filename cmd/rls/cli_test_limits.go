package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
	"github.com/seed-81f232ab/rls/internal/whatif/limitstest"
)

// newTest returns the command rls test.
func newTest() *cobra.Command {
	o := testOptions{}
	cmd := &cobra.Command{
		Use:   "test PATH…",
		Short: "Run unit tests of limits",
		Long: "Runs the tests in all PATHs. A PATH is a test file or a directory. In a directory, the command\n" +
			"reads all files *_test.yaml. A test has requests at times of a virtual clock, and the wanted\n" +
			"answers. docs/testing-limits.md describes test files.\n" +
			"Exit code: 0 if all tests pass, 1 if a test fails or the coverage is too low, 2 if a file\n" +
			"has mistakes.",
		Example: "  rls test examples/limits_test.yaml\n" +
			"  rls test examples --coverage-min 90 --json",
		RunE: func(cmd *cobra.Command, paths []string) error {
			o.out, o.errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if o.coverageMin < 0 || o.coverageMin > 100 {
				return inputError(cmd, fmt.Errorf("--coverage-min: got %v, want a percentage from 0 to 100", o.coverageMin))
			}
			if o.watch {
				return o.watchFiles(cmd.Context(), paths)
			}
			_, err := o.run(cmd.Context(), paths)
			return err
		},
	}
	takePaths(cmd)
	fs := cmd.Flags()
	fs.BoolVarP(&o.verbose, "verbose", "v", false, "list passed tests too")
	fs.BoolVar(&o.asJSON, "json", false, "print the report as JSON")
	fs.StringVar(&o.junit, "junit", "", "write the report to this file as JUnit XML")
	fs.Float64Var(&o.coverageMin, "coverage-min", 0, "smallest percentage of the rules that the tests must use")
	fs.BoolVarP(&o.watch, "watch", "w", false, "run the tests again after each change of a file, until interrupted")
	return cmd
}

// testOptions are the options of rls test.
type testOptions struct {
	out, errOut            io.Writer
	verbose, asJSON, watch bool
	junit                  string
	coverageMin            float64
}

// run runs the tests once. It returns the paths of all files and directories that it read.
func (o *testOptions) run(ctx context.Context, paths []string) (read []string, err error) {
	testFiles, err := findTestFiles(paths)
	read = slices.Concat(paths, testFiles)
	if err != nil {
		fmt.Fprintln(o.errOut, "rls:", err)
		return read, exitUnusable
	}
	failed := false
	loader := limitsLoader{}
	var coverage limitstest.Coverage
	var reports []limitstest.FileReport
	for _, path := range testFiles {
		f, config, err := loader.load(path)
		if err != nil {
			reports = append(reports, limitstest.FileReport{File: path, Error: err.Error()})
			failed = true
			continue
		}
		reports = append(reports, f.Run(ctx, config, &coverage))
	}
	read = append(read, loader.paths...)
	if ctx.Err() != nil {
		return read, ctx.Err()
	}
	report := limitstest.NewReport(reports, &coverage)
	if err := o.write(report); err != nil {
		fmt.Fprintln(o.errOut, "rls:", err)
		failed = true
	}
	if failed {
		return read, exitUnusable
	}
	return read, o.verdict(report)
}

// write writes the report in all formats.
func (o *testOptions) write(r *limitstest.Report) error {
	write := func() error { return r.WriteText(o.out, o.verbose) }
	if o.asJSON {
		write = func() error { return reports.JSON(o.out, r) }
	}
	return errors.Join(write(), writeReportFile(o.junit, r.WriteJUnit))
}

// verdict returns the exit code of a report whose files have no mistakes.
func (o *testOptions) verdict(r *limitstest.Report) error {
	if r.Coverage.Percent < o.coverageMin {
		fmt.Fprintf(o.errOut, "coverage: got %.1f %%, want at least %g %%\n", r.Coverage.Percent, o.coverageMin)
		return exitCode(1)
	}
	if r.Failed > 0 {
		return exitCode(1)
	}
	return nil
}

// findTestFiles returns the test files in all paths, each once. The error names every path
// without test files.
func findTestFiles(paths []string) ([]string, error) {
	var found []string
	var errs []error
	for _, path := range paths {
		before := len(found)
		err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			isTest := err == nil && !entry.IsDir() && (name == path || strings.HasSuffix(name, testFileSuffix))
			if isTest {
				found = append(found, filepath.Clean(name))
			}
			return err
		})
		if err == nil && len(found) == before {
			err = fmt.Errorf("%s: got no test file, want a file *%s", path, testFileSuffix)
		}
		if notFound, ok := errors.AsType[*fs.PathError](err); ok {
			err = fmt.Errorf("%s: %w", notFound.Path, notFound.Err)
		}
		errs = append(errs, err)
	}
	slices.Sort(found)
	return slices.Compact(found), errors.Join(errs...)
}

// limitsLoader loads limits files, each set of files once.
type limitsLoader struct {
	configs map[string]*descriptors.Config
	paths   []string // of limits files
}

// load reads a test file and its limits files.
func (l *limitsLoader) load(path string) (*limitstest.File, *descriptors.Config, error) {
	data, err := readBounded(path, limitstest.MaxFileBytes)
	if err != nil {
		return nil, nil, err
	}
	f, err := limitstest.Parse(path, data)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, name := range f.Limits {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		names = append(names, name)
	}
	l.paths = append(l.paths, names...)
	key := fmt.Sprintf("%t %q", f.Merge, names)
	if config := l.configs[key]; config != nil {
		return f, config, nil
	}
	config, err := loadLimits(nil, names, limitsfile.Options{MergeDomains: f.Merge})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: the limits files have mistakes:\n%w", path, err)
	}
	if l.configs == nil {
		l.configs = map[string]*descriptors.Config{}
	}
	l.configs[key] = config
	return f, config, nil
}
