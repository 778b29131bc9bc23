package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	filesource "github.com/seed-81f232ab/rls/source/file"
)

// newCheck returns the command rls check.
func newCheck() *cobra.Command {
	var strict, merge, ignoreDotFiles bool
	cmd := &cobra.Command{
		Use:   "check PATH…",
		Short: "Check limits files and print what they limit",
		Long: "Checks the limits files of all PATHs (files or directories) together, as the service\n" +
			"loads them. Prints the tree of limits, or every problem with its file, line and column.\n" +
			"Exit code: 0 if the service would load the files, else 1.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			return checkCommand{
				out: cmd.OutOrStdout(), errOut: cmd.ErrOrStderr(), strict: strict,
				ignoreDotFiles: ignoreDotFiles, parseOptions: limitsfile.Options{MergeDomains: merge},
			}.run(paths)
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as problems")
	cmd.Flags().BoolVar(&merge, "merge", false, "merge files of the same domain (MERGE_DOMAIN_CONFIG)")
	cmd.Flags().BoolVar(&ignoreDotFiles, "ignore-dot-files", false, "skip files and directories whose names start with a dot (RUNTIME_IGNOREDOTFILES)")
	return cmd
}

// checkCommand checks limits files.
type checkCommand struct {
	out, errOut    io.Writer
	strict         bool
	ignoreDotFiles bool
	parseOptions   limitsfile.Options
}

func (c checkCommand) run(paths []string) error {
	var files []limitsfile.File
	readFailed := false
	for _, path := range paths {
		found, skipped, err := filesource.Read(path, c.ignoreDotFiles)
		for _, s := range skipped {
			fmt.Fprintln(c.errOut, "skipped:", s)
		}
		if err != nil {
			fmt.Fprintln(c.errOut, err)
			readFailed = true
		}
		files = append(files, found...)
	}
	set, err := limitsfile.Parse(files, c.parseOptions)
	var problems limitsfile.Problems
	switch {
	case errors.As(err, &problems):
		return c.fail(problems)
	case err != nil:
		return err
	case readFailed:
		return exitCode(1)
	case c.strict && len(set.Warnings) > 0:
		return c.fail(set.Warnings)
	}
	for _, p := range set.Warnings {
		fmt.Fprintln(c.errOut, "warning:", p)
	}
	return descriptors.Compile(set).WriteTree(c.out)
}

// fail prints problems and returns exit code 1.
func (c checkCommand) fail(problems limitsfile.Problems) error {
	for _, p := range problems {
		fmt.Fprintln(c.errOut, p)
	}
	return exitCode(1)
}
