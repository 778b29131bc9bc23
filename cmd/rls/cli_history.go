package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/service"
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
			var history admin.History
			return client.run(cmd, http.MethodGet, "history", query, nil, &history, func(out io.Writer) {
				printHistory(out, history.Changes, time.Now())
				if history.OlderChanges > 0 {
					fmt.Fprintf(out, "%d older changes; see --count\n", history.OlderChanges)
				}
			})
		},
	}
	cmd.Flags().IntVar(&count, "count", 20, "number of changes, at most 500")
	cmd.Flags().StringVar(&target, "target", "", "only changes of this target, as rls limits list shows it")
	return cmd
}

// printHistory prints a table of changes.
func printHistory(out io.Writer, list []admin.Change, now time.Time) {
	if len(list) == 0 {
		fmt.Fprintln(out, "no changes")
		return
	}
	rows := [][]string{{"VERSION", "WHEN", "BY", "ACTION", "TARGET", "OLD -> NEW", "REASON"}}
	for _, c := range list {
		action := printable(string(c.Action))
		if c.RestoredVersion > 0 || c.Action == "rollback" {
			action += " to " + strconv.FormatInt(c.RestoredVersion, 10)
		}
		for i, w := range c.Fields {
			row := []string{strconv.FormatInt(c.Version, 10), relativeTime(c.ChangedAt.Sub(now)), orDash(c.Author), action, fieldText(w.Kind, w.Target), oneLine(w.OldValue) + " -> " + oneLine(w.NewValue), orDash(c.Reason)}
			if i > 0 { // the same change
				row[0], row[1], row[2], row[3], row[6] = "", "", "", "", ""
			}
			rows = append(rows, row)
		}
	}
	printTable(out, rows)
}

// fieldText names an override by its target, and others by their kind and target.
func fieldText(k override.Kind, target string) string {
	if k == override.KindOverride {
		return printable(target)
	}
	return strings.TrimSpace(kindText(k) + " " + printable(cmp.Or(target, "of all")))
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
			query := url.Values{}
			if cmd.Flags().Changed("to") {
				query.Set("version", strconv.FormatInt(to, 10))
			}
			for name, isSet := range map[string]bool{"dry_run": isDryRun, "force": isForced} {
				if isSet {
					query.Set(name, "true")
				}
			}
			if reason != "" {
				query.Set("reason", reason)
			}
			var answer admin.Rollback
			return client.run(cmd, http.MethodPost, "rollback", query, nil, &answer, func(out io.Writer) {
				printRollback(out, &answer, time.Now())
			})
		},
	}
	cmd.Flags().Int64Var(&to, "to", 0, "version to restore (default: the version before the last change)")
	cmd.Flags().BoolVar(&isDryRun, "dry-run", false, "print the rollback without making it")
	cmd.Flags().BoolVar(&isForced, "force", false, "also replace values that redis-cli has changed after their last change in the history")
	addReasonFlag(cmd, &reason)
	return cmd
}

// printRollback prints the changes that a rollback has undone, and the values in force now.
func printRollback(out io.Writer, r *admin.Rollback, now time.Time) {
	verb := "restored"
	if r.DryRun {
		verb = "dry run; would restore"
	}
	fmt.Fprintf(out, "%s the limits of version %d, without these changes:\n", verb, r.RestoredVersion)
	printHistory(out, r.UndoneChanges, now)
	for i := range r.Fields {
		o := &r.Fields[i]
		state := printable(string(o.State))
		if o.Limits != "" {
			state += ": " + printable(o.Limits)
		}
		fmt.Fprintf(out, "%s: %s\n", fieldText(o.Kind, o.Target), state)
		for _, p := range o.Problems {
			fmt.Fprintln(out, "  "+printable(p))
		}
	}
	if !r.DryRun {
		fmt.Fprintf(out, "undo this with rls limits rollback --to %d\n", r.Version-1)
	}
}

// printStatus prints the switches in force and the replicas.
func printStatus(out io.Writer, s *admin.Status, now time.Time) {
	for _, o := range slices.Concat(s.ShadowMode, s.Switches) {
		if o.State != admin.InForce {
			continue
		}
		fmt.Fprintln(out, switchText(&o, now))
	}
	fmt.Fprintf(out, "version %d\n", s.Version)
	rows := [][]string{{"REPLICA", "STATE", "VERSION", "LIMITS", "PROBLEMS", "STARTED", "SEEN", "BUILD"}}
	for _, r := range s.Replicas {
		rows = append(rows, []string{
			printable(r.Name), printable(string(r.State)), strconv.FormatInt(r.Version, 10), orDash(r.Limits), strconv.Itoa(r.Problems),
			relativeTime(r.Started.Sub(now)), formatDuration(time.Duration(r.SeenSeconds)*time.Second) + " ago", orDash(r.Build),
		})
	}
	printTable(out, rows)
}

// switchText describes a switch in force, such as
// "OFF: shop > tenant=acme, by alice, in 59m, reason: incident".
func switchText(o *admin.Override, now time.Time) string {
	ends, _ := time.Parse(time.RFC3339, o.ExpiresAt)
	if o.Kind != "switch" {
		return "SHADOW_MODE is " + printable(o.Limits) + " for all requests" + switchNotes(o.SetBy, o.Reason, ends, now)
	}
	return offText(&service.Switch{Path: o.Path, Author: o.SetBy, Reason: o.Reason, Expires: ends}, now)
}

// offText describes a switch that has taken limits out of force, as switchText does.
func offText(s *service.Switch, now time.Time) string {
	return "OFF: " + printable(s.Path) + switchNotes(s.Author, s.Reason, s.Expires, now)
}

// switchNotes describes who set a switch, when it ends, and why. A zero ends means never.
func switchNotes(author, reason string, ends, now time.Time) string {
	text := ", by " + orDash(author)
	if ends.IsZero() {
		text += ", without an end"
	} else {
		text += ", ends " + relativeTime(ends.Sub(now))
	}
	if reason != "" {
		text += ", reason: " + printable(reason)
	}
	return text
}
