package main

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/admin"
)

// newCounter returns the command rls counter.
func newCounter() *cobra.Command {
	cmd := commandGroup(&cobra.Command{
		Use:   "counter",
		Short: "Show and reset counters of a running service",
		Long: "Shows or resets the counters of a request. The descriptor has the keys and values of the\n" +
			"request.\n" + descriptorHelp,
	})
	client := &adminClient{}
	client.addFlags(cmd)
	cmd.AddCommand(
		newCounterCommand(client, "get", http.MethodGet, "Show the spent and the remaining hits of each limit of a request"),
		newCounterCommand(client, "reset", http.MethodDelete, "Reset the counters of a request"),
	)
	return cmd
}

// newCounterCommand returns a command that sends a call and prints the answer.
func newCounterCommand(client *adminClient, name, method, short string) *cobra.Command {
	var domain string
	cmd := &cobra.Command{
		Use:     name + " -d DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short:   short,
		Long:    short + ".\n" + descriptorHelp,
		Example: "  rls counter " + name + " -d shop remote_address=10.0.0.1,path=/login",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := parseRequest(domain, args[0])
			if err != nil {
				return err
			}
			var c admin.Reset
			var answer any = &c
			if method == http.MethodGet {
				answer = &c.Counter
			}
			return client.run(cmd, method, "counters", url.Values{"target": {target.RequestString()}}, nil, answer, func(out io.Writer) {
				printCounter(out, &c)
			})
		},
	}
	addDomainFlag(cmd, &domain)
	return cmd
}

// printCounter prints a counter and, after a reset, the hits spent before.
func printCounter(out io.Writer, c *admin.Reset) {
	text := fmt.Sprintf("%s (counter %s)", printable(c.Path), printable(c.Key))
	if c.ShadowMode {
		text += ", in shadow mode"
	}
	fmt.Fprintln(out, text)
	rows := [][]string{{"LIMIT", "SPENT", "REMAINING", "RESETS IN"}}
	for i, l := range c.Limits {
		name := printable(l.Limit)
		if l.Name != "" {
			name += " (" + printable(l.Name) + ")"
		}
		if l.Unlimited {
			rows = append(rows, []string{name, "-", "-", "-"})
			continue
		}
		spent, remaining := strconv.FormatInt(l.Spent, 10), strconv.FormatInt(l.Remaining, 10)
		if i < len(c.Before) {
			spent = strconv.FormatInt(c.Before[i].Spent, 10) + " -> " + spent
		}
		if l.Over {
			remaining += " (over)"
		}
		if l.Degraded {
			spent = "-"
			remaining += " (this replica only; Redis is down)"
		}
		rows = append(rows, []string{name, spent, remaining, formatSeconds(l.ResetSeconds)})
	}
	printTable(out, rows)
	for _, l := range c.Limits {
		if d := l.CachedDenial; d != nil {
			fmt.Fprintf(out, "%s: this replica denies hits from memory (%s) for %s, without asking Redis\n", printable(l.Limit), d.Source, formatSeconds(d.EndsInSeconds))
		}
	}
	if c.Note != "" {
		fmt.Fprintln(out, printable(c.Note))
	}
}

// formatSeconds rounds up to whole seconds.
func formatSeconds(seconds float64) string {
	return formatDuration(time.Duration(math.Ceil(seconds)) * time.Second)
}
