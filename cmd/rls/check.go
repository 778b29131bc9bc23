package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/source"
)

func newCheck() *cobra.Command {
	var strict, merge bool
	cmd := &cobra.Command{
		Use:   "check PATH…",
		Short: "Check limits files and print what they limit",
		Long: "Checks the limits files of all PATHs (files or directories) together, as the service\n" +
			"would load them. Prints every mistake with its file, line and column, or the tree of\n" +
			"limits. Exit code: 0 if the service would take them, else 1.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			return check(cmd.OutOrStdout(), cmd.ErrOrStderr(), paths, strict, descriptors.Options{MergeDomains: merge})
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as mistakes")
	cmd.Flags().BoolVar(&merge, "merge", false, "unite files of one domain (MERGE_DOMAIN_CONFIG)")
	return cmd
}

func check(out, errOut io.Writer, paths []string, strict bool, o descriptors.Options) error {
	var files []descriptors.File
	for _, path := range paths {
		more, skipped, err := source.Files(path, source.Options{})
		for _, s := range skipped {
			fmt.Fprintln(errOut, "skipped:", s)
		}
		if err != nil {
			return err
		}
		files = append(files, more...)
	}
	cfg, err := descriptors.Compile(files, o)
	var problems descriptors.Problems
	switch {
	case errors.As(err, &problems):
		return fail(errOut, problems)
	case err != nil:
		return err
	case strict && len(cfg.Warnings) > 0:
		return fail(errOut, cfg.Warnings)
	}
	for _, p := range cfg.Warnings {
		fmt.Fprintln(errOut, "warning:", p)
	}
	return cfg.WriteTree(out)
}

// fail prints problems and is the error that says no more.
func fail(w io.Writer, problems descriptors.Problems) error {
	for _, p := range problems {
		fmt.Fprintln(w, p)
	}
	return exitCode(1)
}
