package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// newVersion returns the command rls version.
func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, and the commit and its date",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "rls %s\ncommit %s\ndate %s\n%s %s/%s\n", b.Version, b.Commit, b.Date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
