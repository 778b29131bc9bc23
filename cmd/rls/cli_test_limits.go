package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/whatif/limitstest"
)

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
	var coverage limitstest.Coverage
	var reports []limitstest.FileReport
	for _, path := range testFiles {
		f, config, limitsPaths, err := loadTest(path)
		read = append(read, limitsPaths...)
		if err != nil {
			reports = append(reports, limitstest.FileReport{File: path, Error: err.Error()})
			failed = true
			continue
		}
		reports = append(reports, f.Run(ctx, config, &coverage))
	}
	if ctx.Err() != nil {
		return read, ctx.Err()
	}
	report := limitstest.NewReport(reports, &coverage)
	err = errors.Join(printAs(o.out, o.asJSON, report, func(out io.Writer) error { return report.WriteText(out, o.verbose) }),
		writeReportFile(o.junit, report.WriteJUnit))
	if err != nil {
		fmt.Fprintln(o.errOut, "rls:", err)
		failed = true
	}
	switch {
	case failed:
		return read, exitUnusable
	case report.Coverage.Percent < o.coverageMin:
		fmt.Fprintf(o.errOut, "coverage: got %.1f %%, want at least %g %%\n", report.Coverage.Percent, o.coverageMin)
		return read, exitCode(1)
	case report.Failed > 0:
		return read, exitCode(1)
	}
	return read, nil
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

// loadTest reads a test file and its limits files, which are at limitsPaths.
func loadTest(path string) (f *limitstest.File, config *descriptors.Config, limitsPaths []string, err error) {
	data, err := readBounded(path, limitstest.MaxFileBytes)
	if err != nil {
		return nil, nil, nil, err
	}
	if f, err = limitstest.Parse(path, data); err != nil {
		return nil, nil, nil, err
	}
	for _, name := range f.Limits {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		limitsPaths = append(limitsPaths, name)
	}
	if config, err = loadLimits(nil, limitsPaths, limitsfile.Options{MergeDomains: f.Merge}); err != nil {
		err = fmt.Errorf("%s: the limits files have mistakes:\n%w", path, err)
	}
	return f, config, limitsPaths, err
}

// watchInterval is the time between two looks at the watched files.
const watchInterval = 300 * time.Millisecond

// watchFiles runs the tests now and after each change of a file, until ctx ends.
func (o *testOptions) watchFiles(ctx context.Context, paths []string) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	watched, last := paths, ""
	for {
		if state := filesState(watched); state != last {
			read, err := o.run(ctx, paths)
			var code exitCode
			if err != nil && !errors.As(err, &code) && ctx.Err() == nil {
				return err
			}
			if !slices.Equal(read, watched) {
				watched, state = read, filesState(read)
			}
			last = state
			fmt.Fprintf(o.errOut, "%s: waiting for changes\n", time.Now().Format(time.TimeOnly))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// filesState returns a text that changes with the names, sizes and times of all files at or
// below paths.
func filesState(paths []string) string {
	var state strings.Builder
	for _, path := range paths {
		_ = filepath.WalkDir(path, func(name string, _ fs.DirEntry, err error) error {
			info, statErr := os.Stat(name) // of the target of a link
			if err == nil && statErr == nil {
				fmt.Fprintf(&state, "%s %d %d\n", name, info.Size(), info.ModTime().UnixNano())
			} else {
				fmt.Fprintf(&state, "%s is unreadable\n", name)
			}
			return nil
		})
	}
	return state.String()
}
