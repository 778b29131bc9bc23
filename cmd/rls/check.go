package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	filesource "github.com/seed-81f232ab/rls/source/file"
)

func newCheck() *cobra.Command {
	var strict, merge, ignoreDotFiles bool
	cmd := &cobra.Command{
		Use:   "check PATH…",
		Short: "Check limits files and print what they limit",
		Long: "Checks the limits files of all PATHs (files or directories) together, as the service\n" +
			"would load them. Prints every mistake with its file, line and column, and every path\n" +
			"that can't be read, or the tree of limits. Exit code: 0 if the service would take them, else 1.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			return checkCommand{
				out: cmd.OutOrStdout(), errOut: cmd.ErrOrStderr(), strict: strict,
				ignoreDotFiles: ignoreDotFiles,
				compiling:      descriptors.Options{MergeDomains: merge},
			}.run(paths)
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as mistakes")
	cmd.Flags().BoolVar(&merge, "merge", false, "unite files of one domain (MERGE_DOMAIN_CONFIG)")
	cmd.Flags().BoolVar(&ignoreDotFiles, "ignore-dot-files", false, "skip files and directories whose names start with a dot (RUNTIME_IGNOREDOTFILES)")
	return cmd
}

type checkCommand struct {
	out, errOut io.Writer
	strict      bool

	ignoreDotFiles bool
	compiling      descriptors.Options
}

func (c checkCommand) run(paths []string) error {
	var files []descriptors.File
	unread := false
	for _, path := range paths {
		more, skipped, err := filesource.Read(path, c.ignoreDotFiles)
		for _, s := range skipped {
			fmt.Fprintln(c.errOut, "skipped:", s)
		}
		if err != nil {
			fmt.Fprintln(c.errOut, err)
			unread = true
		}
		files = append(files, more...)
	}
	cfg, err := descriptors.Compile(files, c.compiling)
	var problems descriptors.Problems
	switch {
	case errors.As(err, &problems):
		return c.fail(problems)
	case err != nil:
		return err
	case unread:
		return exitCode(1)
	case c.strict && len(cfg.Warnings) > 0:
		return c.fail(cfg.Warnings)
	}
	for _, p := range cfg.Warnings {
		fmt.Fprintln(c.errOut, "warning:", p)
	}
	return cfg.WriteTree(c.out)
}

// fail prints problems and is the error that says no more.
func (c checkCommand) fail(problems descriptors.Problems) error {
	for _, p := range problems {
		fmt.Fprintln(c.errOut, p)
	}
	return exitCode(1)
}
