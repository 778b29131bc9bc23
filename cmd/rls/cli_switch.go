package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
)

// switchHelp describes the arguments of a switch.
const switchHelp = "RULE is the path of a rule as rls explain shows it ('shop > tenant=acme'), or its target\n" +
	"('shop|tenant=acme'). DOMAIN is the name of a domain."

// newLimitsOff returns the command rls limits off.
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
			return flags.put(cmd, client, "switches", target, nil)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all domains")
	flags.add(cmd)
	return cmd
}

// newLimitsOn returns the command rls limits on.
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

// newLimitsShadowMode returns the command rls limits shadow-mode.
func newLimitsShadowMode(client *adminClient) *cobra.Command {
	var flags changeFlags
	cmd := &cobra.Command{
		Use:   "shadow-mode {on | off | reset}",
		Short: "Replace SHADOW_MODE on all replicas",
		Long: "Replaces SHADOW_MODE on all replicas without a restart. With on, the service answers OK to\n" +
			"every request and still counts. With reset, the setting of each replica applies again.",
		Example:   "  rls limits shadow-mode on --for 30m --reason migration",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"on", "off", "reset"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "reset" {
				return deleteField(cmd, client, "shadow-mode", url.Values{}, flags.reason, flags.ifMatch)
			}
			return flags.put(cmd, client, "shadow-mode", "", []string{fmt.Sprintf("shadow_mode=%t", args[0] == "on")})
		},
	}
	flags.add(cmd)
	return cmd
}
