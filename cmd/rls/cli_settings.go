package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
)

func newSettings() *cobra.Command {
	var asJSON, onlySet bool
	cmd := &cobra.Command{
		Use:   "settings",
		Short: "Print all settings with their values",
		Long: "Prints each setting with its value in this environment, and what it does compared with\n" +
			"envoyproxy/ratelimit: the same, something different, or nothing. Secrets are not shown.\n" +
			"Exit code: 0 if the service would accept the settings, else 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, _, problems := env.Load()
			var variables []env.Variable
			for _, v := range s.Variables() {
				if v.IsSet || !onlySet {
					variables = append(variables, v)
				}
			}
			err := printAs(cmd.OutOrStdout(), asJSON, variables, func(out io.Writer) error { printSettings(out, variables); return nil })
			if err == nil && problems != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), problems)
				return exitCode(1)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&onlySet, "set", false, "print only settings that are set")
	return cmd
}

// printSettings prints a table of variables.
func printSettings(out io.Writer, variables []env.Variable) {
	rows := [][]string{{"SETTING", "VALUE", "SOURCE", "COMPARED WITH RATELIMIT"}}
	for _, v := range variables {
		source := "default"
		switch {
		case v.IsSet:
			source = "set"
		case v.Comparison == env.NoEffect:
			source = "not set"
		}
		comparison := string(v.Comparison)
		if v.Note != "" {
			comparison += ": " + v.Note
		}
		rows = append(rows, []string{v.Name, strings.TrimSpace(printable(v.Value)), source, comparison})
	}
	printTable(out, rows)
}
