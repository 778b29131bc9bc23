package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
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
				return client.run(cmd, http.MethodGet, "status", nil, nil, new(admin.Status), "replicas")
			}
			return client.run(cmd, http.MethodGet, "limits", nil, nil, new(admin.List), "limits")
		},
	}
	cmd.Flags().BoolVar(&listsReplicas, "replicas", false, "show which replica has which limits")
	return cmd
}

func newLimitsSet(client *adminClient) *cobra.Command {
	c := change{client: client}
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
			path, target, values, err := c.locate(args)
			if err == nil && len(values) == 0 {
				err = errors.New("nothing to change; give FIELD=VALUE arguments")
			}
			if err != nil {
				return err
			}
			return c.put(cmd, path, target, values)
		},
	}
	c.addTargetFlags(cmd, "create or replace a rule that no limits file has")
	c.addPutFlags(cmd, " (default: until it is deleted)")
	return cmd
}

func newLimitsUnset(client *adminClient) *cobra.Command {
	c := change{client: client}
	cmd := &cobra.Command{
		Use:   "unset {-d DOMAIN KEY[=VALUE][,KEY[=VALUE]…] | --target TARGET | --all}",
		Short: "Undo rls limits set: the limits and settings of before are in force again",
		Long: "Deletes the override of a descriptor. The limits of the files are then in force again.\n" + descriptorHelp + "\n" +
			"With --rule, the command deletes a rule that rls limits set --rule has created. With --all, SHADOW_MODE\n" +
			"of each replica applies again.",
		Example: "  rls limits unset -d shop tenant=acme\n  rls limits unset -d shop --rule plan=trial",
		RunE: func(cmd *cobra.Command, args []string) error {
			path, target, others, err := c.locate(args)
			if err == nil && len(others) > 0 {
				err = fmt.Errorf("got %q behind the target; want nothing", others[0])
			}
			if err != nil {
				return err
			}
			return c.remove(cmd, path, target)
		},
	}
	c.addTargetFlags(cmd, "delete a rule that was created at run time")
	cmd.Flags().StringVar(&c.target, "target", "", "target as rls limits list shows it, valid or not")
	addReasonFlag(cmd, &c.reason)
	cmd.Flags().StringVar(&c.ifMatch, "if-match", "", "delete only the value with this ETag, which rls limits list shows")
	return cmd
}

const switchHelp = "RULE is the path of a rule as rls explain shows it ('shop > tenant=acme'), or its target\n" +
	"('shop|tenant=acme'). DOMAIN is the name of a domain."

func newLimitsOff(client *adminClient) *cobra.Command {
	c := change{client: client}
	cmd := &cobra.Command{
		Use:   "off {RULE | DOMAIN | --all} --for DURATION",
		Short: "Turn off the limits of a rule, of a domain or of all domains",
		Long: "Turns limits off on all replicas. Requests that match these limits pass and are not\n" +
			"counted. When the duration ends, or after rls limits on, the limits are in force again.\n" + switchHelp,
		Example: "  rls limits off 'shop > tenant=acme' --for 1h --reason 'wrong limit'\n" +
			"  rls limits off --all --for 15m --reason incident",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := switchTarget(args, c.isAll)
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("for") {
				return errors.New("--for is missing; give a duration such as 1h, or 0 for no end")
			}
			return c.put(cmd, "switches", url.Values{"target": {target}}, nil)
		},
	}
	cmd.Flags().BoolVar(&c.isAll, "all", false, "all domains")
	c.addPutFlags(cmd, ", or 0 for no end; required")
	return cmd
}

func newLimitsOn(client *adminClient) *cobra.Command {
	c := change{client: client}
	cmd := &cobra.Command{
		Use:     "on {RULE | DOMAIN | --all}",
		Short:   "End a switch of rls limits off",
		Long:    "Ends a switch. The limits are then in force again.\n" + switchHelp,
		Example: "  rls limits on 'shop > tenant=acme'\n  rls limits on --all",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := switchTarget(args, c.isAll)
			if err != nil {
				return err
			}
			return c.remove(cmd, "switches", url.Values{"target": {target}})
		},
	}
	cmd.Flags().BoolVar(&c.isAll, "all", false, "the switch of all domains")
	addReasonFlag(cmd, &c.reason)
	return cmd
}

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
