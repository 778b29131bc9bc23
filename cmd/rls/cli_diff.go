package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/whatif/limitsdiff"
)

var diffExitCodes = map[limitsdiff.Kind]exitCode{limitsdiff.Same: 2, limitsdiff.Looser: 3, limitsdiff.Tighter: 4, limitsdiff.Mixed: 4}

func newDiff() *cobra.Command {
	var asJSON bool
	var limitsOptions limitsfile.Options
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Show which requests new limits files change",
		Long: "Compares the limits files OLD and NEW (files or directories, or - for the standard input).\n" +
			"Prints which rules are new, gone, looser or tighter, which counters stay or start at 0, and which\n" +
			"requests match another rule.\n" +
			"Exit code: 0 if nothing changes, 1 on an error, 2 if the same requests pass (for example, if only\n" +
			"metadata changes), 3 if limits only get looser, 4 if a limit gets tighter or can deny other requests.",
		Args: argCount(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == stdinPath && args[1] == stdinPath {
				return errors.New("the path - is given twice; want it once")
			}
			oldLimits, err := loadLimits(cmd.InOrStdin(), args[:1], limitsOptions)
			if err != nil {
				return fmt.Errorf("old limits files have mistakes:\n%w", err)
			}
			newLimits, err := loadLimits(cmd.InOrStdin(), args[1:], limitsOptions)
			if err != nil {
				return fmt.Errorf("new limits files have mistakes:\n%w", err)
			}
			r := limitsdiff.Compare(oldLimits, newLimits)
			if err := printAs(cmd.OutOrStdout(), asJSON, r, r.WriteText); err != nil || len(r.Changes) == 0 {
				return err
			}
			return diffExitCodes[r.Kind]
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	addMergeFlag(cmd.Flags(), &limitsOptions.MergeDomains)
	return cmd
}
