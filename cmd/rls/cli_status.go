package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/service"
)

// newLimitsStatus returns the command rls limits status.
func newLimitsStatus(client *adminClient) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show which replica has which limits, and the switches",
		Long: "Shows each replica, the version of the last change that the replica has in force, and the hash\n" +
			"of its limits. Replicas with equal limits have equal hashes. If a replica has not reported\n" +
			"itself for 15 seconds, it is lost. After a minute the replica leaves the list.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var status admin.Status
			return client.run(cmd, http.MethodGet, "status", nil, nil, &status, func(out io.Writer) {
				printStatus(out, &status, time.Now())
			})
		},
	}
}

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
