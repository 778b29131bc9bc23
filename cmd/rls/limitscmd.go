package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/admin"
)

func newLimitsCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "limits",
		Short: "Override limits of a running service",
		Long: "Lists, sets and removes overrides: changes of single limits that hold for all replicas at\n" +
			"once, whatever the limits files say, until they are removed or expire.",
	})
	client := &adminClient{}
	client.flags(cmd)
	cmd.AddCommand(newLimitsList(client), newLimitsSet(client), newLimitsUnset(client))
	return cmd
}

// domainFlag adds the flag that tells the domain.
func domainFlag(cmd *cobra.Command, domain *string) {
	cmd.Flags().StringVarP(domain, "domain", "d", "", "the domain of the limits (required)")
	_ = cmd.MarkFlagRequired("domain")
}

func newLimitsList(client *adminClient) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the overrides",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list admin.List
			if err := client.call(cmd.Context(), http.MethodGet, "overrides", nil, nil, &list); err != nil {
				return err
			}
			return client.print(cmd.OutOrStdout(), list, func() {
				printOverrides(cmd.OutOrStdout(), list.Overrides, time.Now())
			})
		},
	}
}

// printOverrides prints a table; below each that is refused, why.
func printOverrides(out io.Writer, all []admin.Override, now time.Time) {
	if len(all) == 0 {
		fmt.Fprintln(out, "no overrides")
		return
	}
	rows := [][]string{{"TARGET", "OVERRIDE", "STATE", "EXPIRES"}}
	for _, o := range all {
		expires := "never"
		if at, err := time.Parse(time.RFC3339, o.ExpiresAt); err == nil {
			expires = inWords(at.Sub(now))
		}
		rows = append(rows, []string{printable(o.Target), oneLine(o.Override), printable(string(o.State)), expires})
		for _, p := range o.Problems {
			rows = append(rows, []string{"  " + printable(p)})
		}
		if o.State == admin.Rejected && o.Limits != "" {
			rows = append(rows, []string{"  the last valid value stays in force: " + printable(o.Limits)})
		}
	}
	table(out, rows)
}

// oneLine is stored JSON in a table.
func oneLine(value json.RawMessage) string {
	const most = 100 // characters
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return "-"
	}
	text := []rune(printable(b.String()))
	if len(text) > most {
		return string(text[:most-1]) + "…"
	}
	return string(text)
}

func newLimitsSet(client *adminClient) *cobra.Command {
	var domain string
	var lasts time.Duration
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "set -d DOMAIN KEY[=VALUE][,KEY[=VALUE]…] FIELD=VALUE [FIELD=VALUE …]",
		Short: "Override the limits of a descriptor",
		Long: "Overrides the limits of a descriptor of the limits files, or of one value that it matches.\n" +
			descriptorHelp + "\n\n" +
			"FIELDs are those of rate_limit, rate_limits (a JSON list, an item for each limit, {} for\n" +
			"one that stays), factor (multiplies requests_per_unit and burst), shadow_mode and\n" +
			"expires_at. A VALUE that is JSON is taken as such, any other as text. What was set\n" +
			"before for the descriptor is replaced, not added to.",
		Example: "  rls limits set -d shop tenant=acme factor=10 --for 1h\n" +
			"  rls limits set -d shop real_ip requests_per_unit=20 algorithm=token_bucket burst=40\n" +
			"  rls limits set -d shop remote_address 'rate_limits=[{\"requests_per_unit\": 20}, {}]'",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := readTarget(domain, args[0])
			if err != nil {
				return err
			}
			fields := args[1:]
			now := time.Now()
			if cmd.Flags().Changed("for") {
				if lasts < time.Second {
					return errors.New("--for must be at least 1s")
				}
				end := now.Add(lasts + time.Second - 1).UTC() // told in whole seconds
				fields = append(fields, "expires_at="+end.Format(time.RFC3339))
			}
			value, err := overrideJSON(fields)
			if err != nil {
				return err
			}
			query := url.Values{"target": {target.String()}}
			if dryRun {
				query.Set("dry_run", "true")
			}
			var is admin.Override
			if err := client.call(cmd.Context(), http.MethodPut, "overrides", query, value, &is); err != nil {
				return err
			}
			return client.print(cmd.OutOrStdout(), &is, func() { printChange(cmd.OutOrStdout(), &is, now) })
		},
	}
	domainFlag(cmd, &domain)
	cmd.Flags().DurationVar(&lasts, "for", 0, "how long the override holds, such as 90s or 1h (default: until it is removed)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would be")
	return cmd
}

// overrideJSON makes a JSON object of FIELD=VALUE arguments.
func overrideJSON(args []string) ([]byte, error) {
	var b bytes.Buffer
	seen := map[string]bool{}
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		switch {
		case !ok || name == "":
			return nil, fmt.Errorf("%q is not a field: write FIELD=VALUE", arg)
		case seen[name] && name == "expires_at":
			return nil, errors.New("expires_at is given twice; --for sets it, too")
		case seen[name]:
			return nil, fmt.Errorf("%s is given twice", name)
		}
		seen[name] = true
		value := []byte(text)
		if !json.Valid(value) {
			value = encoded(text)
		}
		b.WriteByte(',')
		b.Write(encoded(name))
		b.WriteByte(':')
		b.Write(bytes.TrimSpace(value))
	}
	b.Bytes()[0] = '{'
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encoded is text as a JSON string.
func encoded(text string) []byte {
	quoted, _ := json.Marshal(text) // a string never fails
	return quoted
}

// printChange prints what an override has changed:
// `shop > tenant=acme: 100 per minute -> 1000 per minute, until 2026-11-21T12:00:00Z (in 1h)`.
func printChange(out io.Writer, o *admin.Override, now time.Time) {
	text := fmt.Sprintf("%s: %s -> %s", orDash(o.Path), orDash(o.BaseLimits), orDash(o.Limits))
	if at, err := time.Parse(time.RFC3339, o.ExpiresAt); err == nil {
		text += fmt.Sprintf(", until %s (%s)", o.ExpiresAt, inWords(at.Sub(now)))
	}
	if o.DryRun {
		text += " (dry run: nothing is changed)"
	}
	fmt.Fprintln(out, text)
	for _, p := range o.AlsoRejected {
		fmt.Fprintln(out, "no longer in force beside it:", printable(p))
	}
	if len(o.OldOverride) > 0 && o.State != admin.Deleted {
		fmt.Fprintln(out, "it replaces", oneLine(o.OldOverride))
	}
	if o.State != admin.InForce && o.State != admin.Deleted {
		fmt.Fprintln(out, "it is stored, but", strconv.Quote(string(o.State)), "by now; see rls limits list")
	}
}

func newLimitsUnset(client *adminClient) *cobra.Command {
	var domain, target string
	cmd := &cobra.Command{
		Use:     "unset {-d DOMAIN KEY[=VALUE][,KEY[=VALUE]…] | --target TARGET}",
		Short:   "Remove the override of a descriptor",
		Long:    "Removes the override of a descriptor, so that the limits files say again what holds.\n" + descriptorHelp,
		Example: "  rls limits unset -d shop tenant=acme",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case target != "" && len(args) == 0 && domain == "":
			case target == "" && len(args) == 1 && domain != "":
				t, err := readTarget(domain, args[0])
				if err != nil {
					return err
				}
				target = t.String()
			default:
				return errors.New("give -d DOMAIN and a descriptor, or --target")
			}
			var was admin.Override
			if err := client.call(cmd.Context(), http.MethodDelete, "overrides", url.Values{"target": {target}}, nil, &was); err != nil {
				return err
			}
			return client.print(cmd.OutOrStdout(), &was, func() {
				if was.Path == "" {
					fmt.Fprintln(cmd.OutOrStdout(), "removed; it was not in force")
					return
				}
				printChange(cmd.OutOrStdout(), &was, time.Now())
			})
		},
	}
	cmd.Flags().StringVarP(&domain, "domain", "d", "", "the domain of the limits")
	cmd.Flags().StringVar(&target, "target", "", "the target as rls limits list shows it, however it is written")
	return cmd
}
