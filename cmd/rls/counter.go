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

func newCounter() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "counter",
		Short: "See and reset what requests have spent, in a running service",
		Long:  "Shows what requests with the keys and values of a descriptor have spent, or gives it back.\n" + descriptorHelp,
	})
	client := &adminClient{}
	client.flags(cmd)
	cmd.AddCommand(
		newCounterCommand(client, "get", http.MethodGet, "Show what is spent of each limit"),
		newCounterCommand(client, "reset", http.MethodDelete, "Give back all that is spent"),
	)
	return cmd
}

// newCounterCommand makes a command that shows what a method answers.
func newCounterCommand(client *adminClient, name, method, short string) *cobra.Command {
	var domain string
	cmd := &cobra.Command{
		Use:     name + " -d DOMAIN KEY=VALUE[,KEY=VALUE…]",
		Short:   short,
		Long:    short + ".\n" + descriptorHelp,
		Example: "  rls counter " + name + " -d shop remote_address=10.0.0.1,path=/login",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := readRequest(domain, args[0])
			if err != nil {
				return err
			}
			var c admin.Reset
			if err := client.call(cmd.Context(), method, "counters", url.Values{"target": {target.String()}}, nil, &c); err != nil {
				return err
			}
			var answer any = &c
			if method == http.MethodGet {
				answer = &c.Counter
			}
			return client.print(cmd.OutOrStdout(), answer, func() { printCounter(cmd.OutOrStdout(), &c) })
		},
	}
	domainFlag(cmd, &domain)
	return cmd
}

// printCounter prints a counter, and what it was before if it was reset.
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
			remaining += " (of this replica alone: Redis is away)"
		}
		rows = append(rows, []string{name, spent, remaining, roughly(time.Duration(math.Ceil(l.ResetSeconds)) * time.Second)})
	}
	table(out, rows)
	if c.Note != "" {
		fmt.Fprintln(out, printable(c.Note))
	}
}
