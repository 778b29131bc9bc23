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
	var strict, ignoreDotFiles bool
	var parseOptions limitsfile.Options
	cmd := &cobra.Command{
		Use:   "check PATH…",
		Short: "Check limits files and print what they limit",
		Long: "Checks the limits files of all PATHs (files or directories) together, as the service\n" +
			"loads them. Prints the tree of limits, or every problem with its file, line and column.\n" +
			"Exit code: 0 if the service would load the files, else 1.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			return check(cmd.OutOrStdout(), cmd.ErrOrStderr(), paths, strict, ignoreDotFiles, parseOptions)
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as problems")
	cmd.Flags().BoolVar(&parseOptions.MergeDomains, "merge", false, "merge files of the same domain (MERGE_DOMAIN_CONFIG)")
	cmd.Flags().BoolVar(&ignoreDotFiles, "ignore-dot-files", false, "skip files and directories whose names start with a dot (RUNTIME_IGNOREDOTFILES)")
	return cmd
}

// check checks limits files and prints the limits to out, all else to errOut.
func check(out, errOut io.Writer, paths []string, strict, ignoreDotFiles bool, o limitsfile.Options) error {
	var files []limitsfile.File
	readFailed := false
	for _, path := range paths {
		found, skipped, err := filesource.Place{Root: path, IgnoreDotFiles: ignoreDotFiles}.Read()
		for _, s := range skipped {
			fmt.Fprintln(errOut, "skipped:", s)
		}
		if err != nil {
			fmt.Fprintln(errOut, err)
			readFailed = true
		}
		files = append(files, found...)
	}
	set, err := limitsfile.Parse(files, o)
	if problems := (limitsfile.Problems)(nil); errors.As(err, &problems) {
		fmt.Fprintln(errOut, problems)
		return exitCode(1)
	}
	if err != nil {
		return err
	}
	prefix := "warning: "
	if strict {
		prefix = ""
	}
	for _, p := range set.Warnings {
		fmt.Fprintln(errOut, prefix+p.String())
	}
	if readFailed || strict && len(set.Warnings) > 0 {
		return exitCode(1)
	}
	return descriptors.Compile(set).WriteTree(out)
}
