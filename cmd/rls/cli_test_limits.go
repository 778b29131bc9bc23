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
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
	"github.com/seed-81f232ab/rls/internal/whatif/limitstest"
)

func newTest() *cobra.Command {
	options := testOptions{}
	cmd := &cobra.Command{
		Use:   "test PATH…",
		Short: "Run unit tests of limits",
		Long: "Runs the tests in all PATHs. A PATH is a test file or a directory. In a directory, the command\n" +
			"reads all files *_test.yaml. A test sends requests at times of a virtual clock, and says which\n" +
			"answers it wants. docs/testing-limits.md describes test files.\n" +
			"Exit code: 0 if all tests pass, 1 if a test fails or the coverage is too low, 2 if a file\n" +
			"has mistakes.",
		Example: "  rls test examples/limits_test.yaml\n" +
			"  rls test examples --coverage-min 90 --json",
		RunE: func(cmd *cobra.Command, paths []string) error {
			options.out, options.errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if options.coverageMin < 0 || options.coverageMin > 100 {
				return inputError(fmt.Errorf("--coverage-min: got %v, want a percentage from 0 to 100", options.coverageMin))
			}
			return options.run(cmd.Context(), paths)
		},
	}
	requirePaths(cmd)
	fs := cmd.Flags()
	fs.BoolVarP(&options.isVerbose, "verbose", "v", false, "also list passed tests")
	fs.BoolVar(&options.asJSON, "json", false, "print the report as JSON")
	fs.Float64Var(&options.coverageMin, "coverage-min", 0, "smallest percentage of the rules that the tests must use")
	return cmd
}

type testOptions struct {
	out, errOut       io.Writer
	isVerbose, asJSON bool
	coverageMin       float64
}

func (o *testOptions) run(ctx context.Context, paths []string) error {
	testFiles, err := findTestFiles(paths)
	if err != nil {
		return inputError(err)
	}
	hasUnreadableFile := false
	var coverage limitstest.Coverage
	var reports []limitstest.FileReport
	for _, path := range testFiles {
		testFile, config, err := loadTest(path)
		if err != nil {
			reports = append(reports, limitstest.FileReport{File: path, Error: err.Error()})
			hasUnreadableFile = true
			continue
		}
		reports = append(reports, testFile.Run(ctx, config, &coverage))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	report := limitstest.NewReport(reports, &coverage)
	err = printAs(o.out, o.asJSON, report, func(out io.Writer) error { return report.WriteText(out, o.isVerbose) })
	switch {
	case err != nil:
		return inputError(err)
	case hasUnreadableFile:
		return exitCode(2)
	case report.Coverage.Percent < o.coverageMin:
		fmt.Fprintf(o.errOut, "coverage: got %.1f %%, want at least %g %%\n", report.Coverage.Percent, o.coverageMin)
		return exitCode(1)
	case report.Failed > 0:
		return exitCode(1)
	}
	return nil
}

// findTestFiles returns the test files in all paths, each file once. The error names every path without test files.
func findTestFiles(paths []string) ([]string, error) {
	var testFiles []string
	var errs []error
	for _, path := range paths {
		oldCount := len(testFiles)
		err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			isTest := err == nil && !entry.IsDir() && (name == path || strings.HasSuffix(name, filesource.TestFileSuffix))
			if isTest {
				testFiles = append(testFiles, filepath.Clean(name))
			}
			return err
		})
		if err == nil && len(testFiles) == oldCount {
			err = fmt.Errorf("%s: got no test file, want a file *%s", path, filesource.TestFileSuffix)
		}
		if notFound, ok := errors.AsType[*fs.PathError](err); ok {
			err = fmt.Errorf("%s: %w", notFound.Path, notFound.Err)
		}
		errs = append(errs, err)
	}
	slices.Sort(testFiles)
	return slices.Compact(testFiles), errors.Join(errs...)
}

func loadTest(path string) (*limitstest.File, *descriptors.Config, error) {
	data, err := readBoundedFile(path, limitstest.MaxFileBytes)
	if err != nil {
		return nil, nil, err
	}
	testFile, err := limitstest.Parse(path, data)
	if err != nil {
		return nil, nil, err
	}
	var limitsPaths []string
	for _, name := range testFile.Limits {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		limitsPaths = append(limitsPaths, name)
	}
	config, err := loadLimits(nil, limitsPaths, limitsfile.Options{MergeDomains: testFile.MergesDomains})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: the limits files have mistakes:\n%w", path, err)
	}
	return testFile, config, nil
}
