package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/internal/admin"
)

func newLimitsHistory(client *adminClient) *cobra.Command {
	var target string
	var count int
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show the last changes: who changed what, when and why",
		Long: "Shows the last changes of overrides, rules and switches, the newest first. The history does not\n" +
			"have changes by redis-cli, and changes of limits files and other sources.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{"count": {strconv.Itoa(count)}}
			if cmd.Flags().Changed("target") {
				query.Set("target", target)
			}
			return client.run(cmd, http.MethodGet, "history", query, nil, new(admin.History), "history")
		},
	}
	cmd.Flags().IntVar(&count, "count", 20, "number of changes, at most 500")
	cmd.Flags().StringVar(&target, "target", "", "only changes of this target, as rls limits list shows it")
	return cmd
}

func newLimitsRollback(client *adminClient) *cobra.Command {
	var to int64
	var isDryRun, isForced bool
	var reason string
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Undo the last change of limits at run time",
		Long: "Undoes the last change of overrides, rules and switches, on all replicas and in one step. Each\n" +
			"further rollback undoes one more change. With --to, the command restores the state after a\n" +
			"version that rls limits history shows. So --to can also undo a rollback. Limits files and\n" +
			"counters stay as they are.",
		Example: "  rls limits rollback --dry-run\n  rls limits rollback --to 2 --reason 'back to Monday'",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("rollback: got %q, want no argument; --to VERSION names the version to restore, such as --to 3", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{"dry_run": {strconv.FormatBool(isDryRun)}, "force": {strconv.FormatBool(isForced)}, "reason": {reason}}
			if cmd.Flags().Changed("to") {
				query.Set("version", strconv.FormatInt(to, 10))
			}
			return client.run(cmd, http.MethodPost, "rollback", query, nil, new(admin.Rollback), "rollback")
		},
	}
	cmd.Flags().Int64Var(&to, "to", 0, "version to restore (default: the version before the last change)")
	cmd.Flags().BoolVar(&isDryRun, "dry-run", false, "print the rollback without making it")
	cmd.Flags().BoolVar(&isForced, "force", false, "also replace values that redis-cli has changed after their last change in the history")
	addReasonFlag(cmd, &reason)
	return cmd
}
