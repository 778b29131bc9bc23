package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

func newLimitsCLI() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "limits",
		Short: "Change limits of a running service",
		Long: "Changes limits on all replicas, until the change is deleted or expires. Overrides change\n" +
			"the limits of a descriptor, rules add limits, and switches turn limits off.\n" +
			"Limits files stay as they are.",
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var names []string
		for _, child := range cmd.Commands() {
			names = append(names, child.Name())
		}
		return fmt.Errorf("unknown command %q; want %s", args[0], fields.OneOf(args[0], names))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	client := &adminClient{}
	client.addFlags(cmd.PersistentFlags())
	client.addAnswerFlags(cmd.PersistentFlags())
	cmd.AddCommand(newLimitsList(client), newLimitsSet(client), newLimitsUnset(client),
		newLimitsOff(client), newLimitsOn(client), newLimitsHistory(client), newLimitsRollback(client))
	return cmd
}

// addDomainFlag adds the required flag --domain.
func addDomainFlag(cmd *cobra.Command, domain *string) {
	cmd.Flags().StringVarP(domain, "domain", "d", "", "domain of the limits (required)")
	_ = cmd.MarkFlagRequired("domain")
}

func newLimitsList(client *adminClient) *cobra.Command {
	var listsReplicas bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the overrides, rules and switches, or which replica has which limits",
		Long: "Lists the overrides, rules and switches.\n" +
			"With --replicas, the command shows the switches and each replica, the version of the last change that\n" +
			"the replica has in force, and the hash of its limits. Replicas with equal limits have equal hashes.\n" +
			"If a replica has not reported itself for 15 seconds, it is lost. After a minute the replica leaves the list.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if listsReplicas {
				var status admin.Status
				return client.run(cmd, http.MethodGet, "status", nil, nil, &status, func(out io.Writer) {
					printStatus(out, &status, time.Now())
				})
			}
			var list admin.List
			return client.run(cmd, http.MethodGet, "limits", nil, nil, &list, func(out io.Writer) {
				printFields(out, slices.Concat(list.ShadowMode, list.Switches, list.Rules, list.Overrides), time.Now())
			})
		},
	}
	cmd.Flags().BoolVar(&listsReplicas, "replicas", false, "show which replica has which limits")
	return cmd
}

// printFields prints a table of overrides, rules and switches and, below the table, their
// problems.
func printFields(out io.Writer, list []admin.Override, now time.Time) {
	if len(list) == 0 {
		fmt.Fprintln(out, "no overrides, rules or switches")
		return
	}
	var problems []string
	rows := [][]string{{"KIND", "TARGET", "VALUE", "STATE", "EXPIRES", "BY", "ETAG"}}
	for _, o := range list {
		expires := "never"
		if at, err := time.Parse(time.RFC3339, o.ExpiresAt); err == nil {
			expires = relativeTime(at.Sub(now))
		}
		rows = append(rows, []string{
			kindText(o.Kind), printable(cmp.Or(o.Target, "all")), oneLine(o.Override), printable(string(o.State)), expires, orDash(o.SetBy), o.ETag,
		})
		for _, p := range o.Problems {
			problems = append(problems, printable(p))
		}
		if o.State == admin.Rejected && o.Limits != "" {
			problems = append(problems, "the last valid value stays in force: "+printable(o.Limits))
		}
	}
	printTable(out, rows)
	for _, p := range problems {
		fmt.Fprintln(out, "  "+p)
	}
}

// kindText returns a kind in words.
func kindText(k override.Kind) string { return printable(strings.ReplaceAll(string(k), "_", " ")) }

// oneLine returns stored JSON as one line of at most 100 characters.
func oneLine(value json.RawMessage) string {
	const maxLength = 100
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return "-"
	}
	text := []rune(printable(b.String()))
	if len(text) > maxLength {
		return string(text[:maxLength-1]) + "…"
	}
	return string(text)
}

func newLimitsSet(client *adminClient) *cobra.Command {
	var target changeTarget
	var flags changeFlags
	cmd := &cobra.Command{
		Use:   "set {-d DOMAIN KEY[=VALUE][,KEY[=VALUE]…] | --all} FIELD=VALUE [FIELD=VALUE …]",
		Short: "Override the limits of a descriptor, create a rule, or replace SHADOW_MODE",
		Long: "Overrides the limits of a descriptor of the limits files, or of one value of its key.\n" +
			descriptorHelp + "\n\n" +
			"FIELD is a field of rate_limit, or rate_limits (a JSON list with an item for each limit,\n" +
			"where {} changes nothing), factor (multiplies requests_per_unit and burst), shadow_mode,\n" +
			"enforce or expires_at. If VALUE is not JSON, it is text. A new override replaces the old override\n" +
			"of the descriptor.\n" +
			"With --rule, the command creates a rule that no limits file has, or replaces such a rule. FIELD is then\n" +
			"a field of a descriptor, or a field of rate_limit. The service checks the rule like a rule of a limits file.\n" +
			"With --all, shadow_mode replaces SHADOW_MODE on all replicas without a restart. With true, the service\n" +
			"answers OK to every request and still counts.",
		Example: "  rls limits set -d shop tenant=acme factor=10 --for 1h --reason sale\n" +
			"  rls limits set -d shop real_ip requests_per_unit=20 algorithm=token_bucket burst=40\n" +
			"  rls limits set -d shop remote_address 'rate_limits=[{\"requests_per_unit\": 20}, {}]'\n" +
			"  rls limits set -d shop --rule plan=trial unit=minute requests_per_unit=20 shadow_mode=true\n" +
			"  rls limits set --all shadow_mode=true --for 30m --reason migration",
		RunE: func(cmd *cobra.Command, args []string) error {
			path, query, values, err := target.read(args)
			if err == nil && len(values) == 0 {
				err = errors.New("nothing to change; give FIELD=VALUE arguments")
			}
			if err != nil {
				return err
			}
			return flags.put(cmd, client, path, query, values)
		},
	}
	target.add(cmd, "create or replace a rule that no limits file has")
	flags.add(cmd)
	return cmd
}

// overrideJSON returns a JSON object of FIELD=VALUE arguments.
func overrideJSON(args []string) ([]byte, error) {
	fields := make([]string, len(args))
	seen := map[string]bool{}
	for i, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		switch {
		case !ok || name == "":
			return nil, fmt.Errorf("%q is not a field: write FIELD=VALUE", arg)
		case seen[name] && name == "expires_at":
			return nil, errors.New("expires_at is given twice; --for also sets expires_at")
		case seen[name]:
			return nil, fmt.Errorf("%s is given twice", name)
		}
		seen[name] = true
		if !json.Valid([]byte(text)) {
			text = quoteJSON(text)
		}
		fields[i] = quoteJSON(name) + ":" + strings.TrimSpace(text)
	}
	return []byte("{" + strings.Join(fields, ",") + "}"), nil
}

// quoteJSON returns text as a JSON string.
func quoteJSON(text string) string {
	quoted, _ := json.Marshal(text) // a string never fails
	return string(quoted)
}

// printChange prints the change of an override:
// `shop > tenant=acme: 100 per minute -> 1000 per minute, counters=kept, until 2026-11-21T12:00:00Z (in 1h)`.
func printChange(out io.Writer, o *admin.Override, now time.Time) {
	text := fmt.Sprintf("%s: %s -> %s", orDash(o.Path), orDash(o.BaseLimits), orDash(o.Limits))
	if o.Kind == override.KindRule && o.State == admin.Deleted {
		text = fmt.Sprintf("%s: %s -> no rule", orDash(o.Path), orDash(o.BaseLimits))
	}
	if o.Counters != "" {
		text += ", counters=" + printable(o.Counters)
	}
	if at, err := time.Parse(time.RFC3339, o.ExpiresAt); err == nil {
		text += fmt.Sprintf(", until %s (%s)", o.ExpiresAt, relativeTime(at.Sub(now)))
	}
	if o.DryRun {
		text += " (dry run; nothing has changed)"
	}
	fmt.Fprintln(out, text)
	for _, p := range o.AlsoRejected {
		fmt.Fprintln(out, "no longer valid:", printable(p))
	}
	if len(o.OldOverride) > 0 && o.State != admin.Deleted {
		fmt.Fprintln(out, "replaced:", oneLine(o.OldOverride))
	}
	if o.State != admin.InForce && o.State != admin.Deleted {
		fmt.Fprintln(out, "stored, but its state is", strconv.Quote(string(o.State))+"; see rls limits list")
	}
}

func newLimitsUnset(client *adminClient) *cobra.Command {
	var target changeTarget
	var reason, ifMatch string
	cmd := &cobra.Command{
		Use:   "unset {-d DOMAIN KEY[=VALUE][,KEY[=VALUE]…] | --target TARGET | --all}",
		Short: "Undo rls limits set: the limits and settings of before are in force again",
		Long: "Deletes the override of a descriptor. The limits of the files are then in force again.\n" + descriptorHelp + "\n" +
			"With --rule, the command deletes a rule that rls limits set --rule has created. With --all, SHADOW_MODE\n" +
			"of each replica applies again.",
		Example: "  rls limits unset -d shop tenant=acme\n  rls limits unset -d shop --rule plan=trial",
		RunE: func(cmd *cobra.Command, args []string) error {
			path, query, others, err := target.read(args)
			if err == nil && len(others) > 0 {
				err = fmt.Errorf("got %q behind the target; want nothing", others[0])
			}
			if err != nil {
				return err
			}
			return deleteField(cmd, client, path, query, reason, ifMatch)
		},
	}
	target.add(cmd, "delete a rule that was created at run time")
	cmd.Flags().StringVar(&target.text, "target", "", "target as rls limits list shows it, valid or not")
	addReasonFlag(cmd, &reason)
	cmd.Flags().StringVar(&ifMatch, "if-match", "", "delete only the value with this ETag, which rls limits list shows")
	return cmd
}

// switchHelp describes the arguments of a switch.
const switchHelp = "RULE is the path of a rule as rls explain shows it ('shop > tenant=acme'), or its target\n" +
	"('shop|tenant=acme'). DOMAIN is the name of a domain."

func newLimitsOff(client *adminClient) *cobra.Command {
	var all bool
	flags := changeFlags{allowsNoEnd: true}
	cmd := &cobra.Command{
		Use:   "off {RULE | DOMAIN | --all} --for DURATION",
		Short: "Turn off the limits of a rule, of a domain or of all domains",
		Long: "Turns limits off on all replicas. Requests that match these limits pass and are not\n" +
			"counted. When the duration ends, or after rls limits on, the limits are in force again.\n" + switchHelp,
		Example: "  rls limits off 'shop > tenant=acme' --for 1h --reason 'wrong limit'\n" +
			"  rls limits off --all --for 15m --reason incident",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := switchTarget(args, all)
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("for") {
				return errors.New("--for is missing; give a duration such as 1h, or 0 for no end")
			}
			return flags.put(cmd, client, "switches", url.Values{"target": {target}}, nil)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all domains")
	flags.add(cmd)
	return cmd
}

func newLimitsOn(client *adminClient) *cobra.Command {
	var all bool
	var reason string
	cmd := &cobra.Command{
		Use:     "on {RULE | DOMAIN | --all}",
		Short:   "End a switch of rls limits off",
		Long:    "Ends a switch. The limits are then in force again.\n" + switchHelp,
		Example: "  rls limits on 'shop > tenant=acme'\n  rls limits on --all",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := switchTarget(args, all)
			if err != nil {
				return err
			}
			return deleteField(cmd, client, "switches", url.Values{"target": {target}}, reason, "")
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "the switch of all domains")
	addReasonFlag(cmd, &reason)
	return cmd
}

// switchTarget returns the target of a switch.
func switchTarget(args []string, all bool) (string, error) {
	if all == (len(args) == 1) {
		return "", errors.New("give a rule, a domain or --all")
	}
	if all {
		return "", nil
	}
	domain, path, isPath := strings.Cut(args[0], " > ")
	switch {
	case args[0] == "":
		return "", errors.New("give a rule, a domain or --all")
	case isPath:
		entries, _, err := entrytext.Parse(strings.ReplaceAll(strings.ReplaceAll(path, ",", `\,`), " > ", ","))
		t, err := newTarget(domain, args[0], entries, err)
		return t.String(), err
	case strings.Contains(args[0], "|"):
		return args[0], nil
	}
	return descriptors.Target{Domain: args[0]}.String(), nil
}
