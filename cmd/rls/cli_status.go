package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/admin"
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
	text := "OFF: " + printable(o.Path)
	if o.Kind != "switch" {
		text = "SHADOW_MODE is " + printable(o.Limits) + " for all requests"
	}
	text += ", by " + orDash(o.SetBy)
	if at, err := time.Parse(time.RFC3339, o.ExpiresAt); err == nil {
		text += ", ends " + relativeTime(at.Sub(now))
	} else {
		text += ", without an end"
	}
	if o.Reason != "" {
		text += ", reason: " + printable(o.Reason)
	}
	return text
}
