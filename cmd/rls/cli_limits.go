package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/observe/live"
)

func newLimitsCLI() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "limits",
		Short: "Show and change limits of a running service",
		Long: "Shows the limits in force, and changes limits on all replicas, until the change is deleted or\n" +
			"expires. Overrides change the limits of a descriptor, rules add limits, and switches turn limits\n" +
			"off. Limits files stay as they are.",
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
	cmd.AddCommand(newLimitsShow(client), newLimitsSet(client), newLimitsUnset(client),
		newLimitsOff(client), newLimitsOn(client), newLimitsHistory(client), newLimitsRollback(client))
	return cmd
}

func addDomainFlag(cmd *cobra.Command, domain *string) {
	cmd.Flags().StringVarP(domain, "domain", "d", "", "domain of the limits")
	_ = cmd.RegisterFlagCompletionFunc("domain", completeDomain)
}

func newLimitsShow(client *adminClient) *cobra.Command {
	var showsChanges, showsReplicas bool
	cmd := &cobra.Command{
		Use:   "show [TEXT]",
		Short: "Show the limits in force, the changes at run time, or which replica has which limits",
		Long: "Shows each rule in force with its limits, from limits files and from changes at run time. With\n" +
			"TEXT, the command shows only rules whose path or limit contains TEXT.\n" +
			"With --changes, the command shows the overrides, rules and switches that were set at run time.\n" +
			"With --replicas, the command shows the switches and all replicas. For each replica it shows the version\n" +
			"of the last change in force, and the hash of the limits. Replicas with equal limits have equal hashes.\n" +
			"A replica without a report for 15 seconds is lost. After a minute it leaves the list.",
		Example:           "  rls limits show 'tenant=acme'\n  rls limits show --changes",
		Args:              argCount(0, 1),
		ValidArgsFunction: completeRule,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && (showsChanges || showsReplicas):
				return errors.New("--changes and --replicas show all of them; leave out TEXT")
			case showsReplicas:
				return client.run(cmd, http.MethodGet, "status", nil, nil, new(admin.Status), "replicas")
			case showsChanges:
				return client.run(cmd, http.MethodGet, "limits", nil, nil, new(admin.List), "limits")
			}
			rules := new(live.RulesAnswer)
			query := url.Values{"filter": {strings.Join(args, "")}}
			if err := client.call(cmd.Context(), http.MethodGet, live.RulesPath, query, nil, rules); err != nil {
				return err
			}
			return printAnswer(cmd.OutOrStdout(), client.asJSON, rules, "rules in force")
		},
	}
	cmd.Flags().BoolVar(&showsChanges, "changes", false, "show the overrides, rules and switches that were set at run time")
	cmd.Flags().BoolVar(&showsReplicas, "replicas", false, "show which replica has which limits")
	cmd.MarkFlagsMutuallyExclusive("changes", "replicas")
	return cmd
}

func newLimitsSet(client *adminClient) *cobra.Command {
	newChange := change{client: client}
	cmd := &cobra.Command{
		Use:   "set {-d DOMAIN KEY[=VALUE][,KEY[=VALUE]…] | --all} FIELD=VALUE [FIELD=VALUE …]",
		Short: "Override the limits of a descriptor, create a rule, or replace SHADOW_MODE",
		Long: "Overrides the limits of a descriptor of the limits files, or of one value of its key.\n" +
			descriptorHelp + "\n\n" +
			"FIELD is a field of rate_limit, or rate_limits (a JSON list with an item for each limit,\n" +
			"where {} changes nothing), factor (multiplies requests_per_unit and burst), shadow_mode,\n" +
			"enforce or expires_at. If VALUE is not JSON, it is text. A new override replaces the old override\n" +
			"of the descriptor for good. So if the old override ends later or never, --for needs --replace.\n" +
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
			path, target, values, err := newChange.parseTargetArgs(args)
			if err == nil && len(values) == 0 {
				err = errors.New("nothing to change; give FIELD=VALUE arguments")
			}
			if err != nil {
				return err
			}
			return newChange.put(cmd, path, target, values)
		},
	}
	newChange.addTargetFlags(cmd, "create or replace a rule that no limits file has")
	newChange.addPutFlags(cmd, " (default: until it is deleted)")
	cmd.Flags().BoolVar(&newChange.replaces, "replace", false, "replace a value that ends later or never for good, although --for ends the new value")
	return cmd
}

func newLimitsUnset(client *adminClient) *cobra.Command {
	newChange := change{client: client}
	cmd := &cobra.Command{
		Use:   "unset {-d DOMAIN KEY[=VALUE][,KEY[=VALUE]…] | --target TARGET | --all}",
		Short: "Undo rls limits set: the old limits and settings are in force again",
		Long: "Deletes the override of a descriptor. The limits of the files are then in force again.\n" + descriptorHelp + "\n" +
			"With --rule, the command deletes a rule that rls limits set --rule has created. With --all, SHADOW_MODE\n" +
			"of each replica applies again.",
		Example: "  rls limits unset -d shop tenant=acme\n  rls limits unset -d shop --rule plan=trial",
		RunE: func(cmd *cobra.Command, args []string) error {
			path, target, otherArgs, err := newChange.parseTargetArgs(args)
			if err == nil && len(otherArgs) > 0 {
				err = fmt.Errorf("got %q behind the target; want nothing", otherArgs[0])
			}
			if err != nil {
				return err
			}
			return newChange.remove(cmd, path, target)
		},
	}
	newChange.addTargetFlags(cmd, "delete a rule that was created at run time")
	cmd.Flags().StringVar(&newChange.target, "target", "", "target of the change, as rls limits show --changes prints it; the target can be invalid")
	addReasonFlag(cmd, &newChange.reason)
	cmd.Flags().StringVar(&newChange.ifMatch, "if-match", "", "delete the value only if it has this ETag; rls limits show --changes prints ETags")
	return cmd
}

const switchHelp = "RULE is the path of a rule as rls explain shows it ('shop > tenant=acme'), or its target\n" +
	"('shop|tenant=acme'). DOMAIN is the name of a domain."

func newLimitsOff(client *adminClient) *cobra.Command {
	newChange := change{client: client}
	cmd := &cobra.Command{
		Use:   "off {RULE | DOMAIN | --all} --for DURATION",
		Short: "Turn off the limits of a rule, of a domain or of all domains",
		Long: "Turns limits off on all replicas. Requests that match these limits pass and are not\n" +
			"counted. When the duration ends, or after rls limits on, the limits are in force again.\n" + switchHelp,
		Example: "  rls limits off 'shop > tenant=acme' --for 1h --reason 'wrong limit'\n" +
			"  rls limits off --all --for 15m --reason incident",
		Args:              argCount(0, 1),
		ValidArgsFunction: completeRule,
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := switchTarget(args, newChange.isAll)
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("for") {
				return errors.New("--for is missing; give a duration such as 1h, or 0 for no end")
			}
			return newChange.put(cmd, "switches", url.Values{"target": {target}}, nil)
		},
	}
	cmd.Flags().BoolVar(&newChange.isAll, "all", false, "all domains")
	newChange.addPutFlags(cmd, ", or 0 for no end; required")
	return cmd
}

func newLimitsOn(client *adminClient) *cobra.Command {
	newChange := change{client: client}
	cmd := &cobra.Command{
		Use:               "on {RULE | DOMAIN | --all}",
		Short:             "End a switch of rls limits off",
		Long:              "Ends a switch that rls limits off has set. The limits are then in force again.\n" + switchHelp,
		Example:           "  rls limits on 'shop > tenant=acme'\n  rls limits on --all",
		Args:              argCount(0, 1),
		ValidArgsFunction: completeRule,
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := switchTarget(args, newChange.isAll)
			if err != nil {
				return err
			}
			return newChange.remove(cmd, "switches", url.Values{"target": {target}})
		},
	}
	cmd.Flags().BoolVar(&newChange.isAll, "all", false, "the switch of all domains")
	addReasonFlag(cmd, &newChange.reason)
	return cmd
}

// switchTarget returns the target of a switch: a rule, a domain, or all domains.
func switchTarget(args []string, isAll bool) (string, error) {
	hasArg := len(args) == 1
	if isAll == hasArg || hasArg && args[0] == "" {
		return "", errors.New("give a rule, a domain or --all")
	}
	if isAll {
		return "", nil
	}
	domain, path, isPath := strings.Cut(args[0], " > ")
	switch {
	case isPath:
		entries, _, err := entrytext.Parse(strings.ReplaceAll(strings.ReplaceAll(path, ",", `\,`), " > ", ","))
		target, err := newTarget(domain, args[0], entries, err)
		return target.String(), err
	case strings.Contains(args[0], "|"):
		return args[0], nil
	}
	return descriptors.Target{Domain: args[0]}.String(), nil
}

// change is a change of limits at run time. Flags set its fields.
type change struct {
	client *adminClient

	domain, target string // target has the form that rls limits show --changes prints
	isRule, isAll  bool

	duration        time.Duration
	reason, ifMatch string
	isNew, isDryRun bool
	replaces        bool
}

// addTargetFlags adds the flags that choose the limits to change. ruleHelp describes --rule.
func (c *change) addTargetFlags(cmd *cobra.Command, ruleHelp string) {
	addDomainFlag(cmd, &c.domain)
	cmd.ValidArgsFunction = completeDescriptor
	cmd.Flags().BoolVar(&c.isRule, "rule", false, ruleHelp)
	cmd.Flags().BoolVar(&c.isAll, "all", false, "shadow mode of all requests, in place of the limits of a descriptor; replaces SHADOW_MODE")
	cmd.MarkFlagsMutuallyExclusive("all", "domain")
	cmd.MarkFlagsMutuallyExclusive("all", "rule")
}

// addPutFlags adds the flags of a new value. endHelp is the end of the description of --for.
func (c *change) addPutFlags(cmd *cobra.Command, endHelp string) {
	fs := cmd.Flags()
	fs.DurationVar(&c.duration, "for", 0, "duration of the change, such as 90s or 1h"+endHelp)
	addReasonFlag(cmd, &c.reason)
	fs.BoolVar(&c.isDryRun, "dry-run", false, "print the change without making it")
	fs.StringVar(&c.ifMatch, "if-match", "", "change the value only if it has this ETag; rls limits show --changes prints ETags")
	fs.BoolVar(&c.isNew, "new", false, "fail if the target already has a value")
}

func addReasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "reason of the change; the history and rls explain show it")
}

// parseTargetArgs returns the path and the query of the target in the admin API, and the arguments after the descriptor.
func (c *change) parseTargetArgs(args []string) (path string, query url.Values, otherArgs []string, err error) {
	path = "overrides"
	if c.isRule {
		path = "rules"
	}
	switch {
	case c.isAll && c.target == "":
		return "shadow-mode", url.Values{}, args, nil
	case c.target != "" && c.domain == "" && !c.isAll:
		return path, url.Values{"target": {c.target}}, args, nil
	case c.target != "" || c.domain == "" || len(args) == 0:
		return "", nil, nil, errors.New("give -d DOMAIN and a descriptor, or another target (--help lists them)")
	}
	target, err := parseTarget(c.domain, args[0])
	return path, url.Values{"target": {target.String()}}, args[1:], err
}

func (c *change) put(cmd *cobra.Command, path string, query url.Values, fields []string) error {
	if cmd.Flags().Changed("for") && (c.duration != 0 || path != "switches") {
		if c.duration < time.Second {
			return errors.New("--for must be at least 1s")
		}
		end := time.Now().Add(c.duration + time.Second - 1).UTC() // rounded up to seconds
		fields = append(fields, "expires_at="+end.Format(time.RFC3339))
	}
	if c.reason != "" {
		fields = append(fields, "reason="+quoteJSON(c.reason))
	}
	var err error
	if path == "rules" {
		if fields, err = nestLimitFields(fields); err != nil {
			return err
		}
	}
	value, err := overrideJSON(fields)
	if err != nil {
		return err
	}
	query.Set("dry_run", strconv.FormatBool(c.isDryRun))
	if c.replaces {
		query.Set("replace", "true")
	}
	return c.send(cmd, http.MethodPut, path, query, value)
}

func (c *change) remove(cmd *cobra.Command, path string, query url.Values) error {
	query.Set("reason", c.reason)
	return c.send(cmd, http.MethodDelete, path, query, nil)
}

// send sends a change with the condition of --new or --if-match.
func (c *change) send(cmd *cobra.Command, method, path string, query url.Values, value []byte) error {
	client := *c.client
	switch {
	case c.isNew && c.ifMatch != "":
		return errors.New("--new and --if-match exclude each other")
	case c.isNew:
		client.header = http.Header{"If-None-Match": {"*"}}
	case c.ifMatch != "":
		client.header = http.Header{"If-Match": {`"` + strings.Trim(c.ifMatch, `"`) + `"`}}
	}
	return client.run(cmd, method, path, query, value, new(admin.Override), "change")
}

// nestLimitFields replaces the arguments for fields of a limit, such as unit=minute, by one argument rate_limit={…}.
func nestLimitFields(fields []string) ([]string, error) {
	var otherFields, limitFields []string
	for _, field := range fields {
		if name, _, _ := strings.Cut(field, "="); limitsfile.IsLimitField(name) {
			limitFields = append(limitFields, field)
		} else {
			otherFields = append(otherFields, field)
		}
	}
	if len(limitFields) == 0 {
		return otherFields, nil
	}
	value, err := overrideJSON(limitFields)
	return append(otherFields, "rate_limit="+string(value)), err
}

// overrideJSON returns a JSON object with the fields of FIELD=VALUE arguments.
func overrideJSON(args []string) ([]byte, error) {
	fields := make([]string, len(args))
	isGiven := map[string]bool{}
	for i, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		switch {
		case !ok || name == "":
			return nil, fmt.Errorf("%q is not a field: write FIELD=VALUE", arg)
		case isGiven[name] && name == "expires_at":
			return nil, errors.New("expires_at is given twice; --for also sets expires_at")
		case isGiven[name]:
			return nil, fmt.Errorf("%s is given twice", name)
		}
		isGiven[name] = true
		if !json.Valid([]byte(text)) {
			text = quoteJSON(text)
		}
		fields[i] = quoteJSON(name) + ":" + strings.TrimSpace(text)
	}
	return []byte("{" + strings.Join(fields, ",") + "}"), nil
}

func quoteJSON(text string) string {
	quotedText, _ := json.Marshal(text) // Marshal of a string returns no error
	return string(quotedText)
}

func newLimitsHistory(client *adminClient) *cobra.Command {
	var target string
	var count int
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show the last changes: who changed what, when and why",
		Long: "Shows the last changes of overrides, rules and switches, and of limits files and other sources,\n" +
			"the newest first. Changes that were made with redis-cli are missing. If overrides are in Redis, the\n" +
			"history also has the last 20 changes of files, without a version.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query, template := url.Values{"count": {strconv.Itoa(count)}}, "history"
			if cmd.Flags().Changed("target") {
				query.Set("target", target)
				template = "history of a target"
			}
			return client.run(cmd, http.MethodGet, "history", query, nil, new(admin.History), template)
		},
	}
	cmd.Flags().IntVar(&count, "count", 20, "number of changes, at most 500")
	cmd.Flags().StringVar(&target, "target", "", "only changes of this target, as rls limits show --changes prints it, or of this path, as rls explain shows it")
	return cmd
}

func newLimitsRollback(client *adminClient) *cobra.Command {
	var toVersion int64
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
		Args:    noArgs("--to VERSION names the version to restore, such as --to 3"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{"dry_run": {strconv.FormatBool(isDryRun)}, "force": {strconv.FormatBool(isForced)}, "reason": {reason}}
			if cmd.Flags().Changed("to") {
				query.Set("version", strconv.FormatInt(toVersion, 10))
			}
			return client.run(cmd, http.MethodPost, "rollback", query, nil, new(admin.Rollback), "rollback")
		},
	}
	cmd.Flags().Int64Var(&toVersion, "to", 0, "version to restore (default: the version before the last change)")
	cmd.Flags().BoolVar(&isDryRun, "dry-run", false, "print the rollback without making it")
	cmd.Flags().BoolVar(&isForced, "force", false, "also replace values that redis-cli has changed after their last change in the history")
	addReasonFlag(cmd, &reason)
	return cmd
}
