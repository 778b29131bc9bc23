package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
)

// newDoctor returns the command rls doctor.
func newDoctor() *cobra.Command {
	var asJSON, strict bool
	var limits string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check settings, limits, ports, certificates and Redis",
		Long: "Checks what the service needs, with the settings of this environment: the settings, the\n" +
			"limits files, the addresses of the listeners, the certificates, the rights of files, and\n" +
			"Redis (rights of the user, settings and state). The command writes only its own keys to Redis,\n" +
			"and deletes these keys. Exit code: 0 without problems, else 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limits != "" {
				_ = os.Setenv("LIMITS_PATH", limits)
			}
			redis.LogTo(slog.New(slog.DiscardHandler)) // the results have all errors
			s, warnings, problems := env.Load()
			d := &doctor{settings: s, now: time.Now()}
			results := d.runChecks(cmd.Context(), warnings, problems)
			err := printAs(cmd.OutOrStdout(), asJSON, results, func(out io.Writer) error { printDiagnoses(out, results); return nil })
			isBad := func(d diagnosis) bool {
				return d.Level == redis.LevelProblem || strict && d.Level == redis.LevelWarning
			}
			if err == nil && slices.ContainsFunc(results, isBad) {
				return exitCode(1)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as problems")
	cmd.Flags().StringVar(&limits, "limits", "", "limits file, or directory of limits files (LIMITS_PATH)")
	return cmd
}

// printDiagnoses prints a line for each result, and a line for its advice.
func printDiagnoses(out io.Writer, results []diagnosis) {
	for _, r := range results {
		fmt.Fprintf(out, "%-8s %s: %s: %s\n", r.Level, r.Area, printable(r.Subject), printable(r.Text))
		if r.Advice != "" {
			fmt.Fprintf(out, "%-8s   → %s\n", "", printable(r.Advice))
		}
	}
}
