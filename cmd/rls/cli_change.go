package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/admin"
)

// changeFlags are the flags of a change of limits at run time.
type changeFlags struct {
	duration        time.Duration
	reason, ifMatch string
	isNew, isDryRun bool
	allowsNoEnd     bool // --for 0 means no end
}

// addReasonFlag adds the flag --reason.
func addReasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "reason of the change; the history and rls explain show it")
}

// add adds the flags to cmd.
func (f *changeFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	end := " (default: until it is deleted)"
	if f.allowsNoEnd {
		end = ", or 0 for no end; required"
	}
	fs.DurationVar(&f.duration, "for", 0, "duration of the change, such as 90s or 1h"+end)
	addReasonFlag(cmd, &f.reason)
	fs.BoolVar(&f.isDryRun, "dry-run", false, "print the change without making it")
	fs.StringVar(&f.ifMatch, "if-match", "", "change only the value with this ETag, which rls limits list shows")
	fs.BoolVar(&f.isNew, "new", false, "fail if the target already has a value")
}

// notes adds the end and the reason to fields.
func (f *changeFlags) notes(cmd *cobra.Command, fields []string, now time.Time) ([]string, error) {
	if cmd.Flags().Changed("for") && (f.duration != 0 || !f.allowsNoEnd) {
		if f.duration < time.Second {
			return nil, errors.New("--for must be at least 1s")
		}
		end := now.Add(f.duration + time.Second - 1).UTC() // rounded up to seconds
		fields = append(fields, "expires_at="+end.Format(time.RFC3339))
	}
	if f.reason != "" {
		fields = append(fields, "reason="+quoteJSON(f.reason))
	}
	return fields, nil
}

// put sends a PUT with FIELD=VALUE arguments and prints the answer.
func (f *changeFlags) put(cmd *cobra.Command, client *adminClient, path, target string, fields []string) error {
	fields, err := f.notes(cmd, fields, time.Now())
	if err != nil {
		return err
	}
	if path == "rules" {
		if fields, err = intoRateLimit(fields); err != nil {
			return err
		}
	}
	value, err := overrideJSON(fields)
	if err != nil {
		return err
	}
	query := url.Values{}
	if path != "shadow-mode" {
		query.Set("target", target)
	}
	if f.isDryRun {
		query.Set("dry_run", "true")
	}
	switch {
	case f.isNew && f.ifMatch != "":
		return errors.New("--new and --if-match exclude each other")
	case f.isNew:
		client = client.withHeader("If-None-Match", "*")
	case f.ifMatch != "":
		client = client.withHeader("If-Match", quoteTag(f.ifMatch))
	}
	var answer admin.Override
	return client.run(cmd, http.MethodPut, path, query, value, &answer, func(out io.Writer) {
		printChange(out, &answer, time.Now())
	})
}

// quoteTag returns an ETag in quotes.
func quoteTag(tag string) string { return `"` + strings.Trim(tag, `"`) + `"` }

// intoRateLimit puts the fields of a limit into one field rate_limit.
func intoRateLimit(fields []string) ([]string, error) {
	var others, ofLimit []string
	for _, field := range fields {
		if name, _, _ := strings.Cut(field, "="); limitsfile.IsLimitField(name) {
			ofLimit = append(ofLimit, field)
		} else {
			others = append(others, field)
		}
	}
	if len(ofLimit) == 0 {
		return others, nil
	}
	value, err := overrideJSON(ofLimit)
	return append(others, "rate_limit="+string(value)), err
}

// newDeleteCommand completes cmd, which deletes the value of a descriptor at path.
func newDeleteCommand(client *adminClient, path string, cmd *cobra.Command) *cobra.Command {
	var domain, target, reason, ifMatch string
	cmd.Args = cobra.MaximumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case target != "" && len(args) == 0 && domain == "":
		case target == "" && len(args) == 1 && domain != "":
			t, err := parseTarget(domain, args[0])
			if err != nil {
				return err
			}
			target = t.String()
		default:
			return errors.New("give -d DOMAIN and a descriptor, or --target")
		}
		return deleteField(cmd, client, path, url.Values{"target": {target}}, reason, ifMatch)
	}
	cmd.Flags().StringVarP(&domain, "domain", "d", "", "domain of the limits")
	cmd.Flags().StringVar(&target, "target", "", "target as rls limits list shows it, valid or not")
	addReasonFlag(cmd, &reason)
	cmd.Flags().StringVar(&ifMatch, "if-match", "", "delete only the value with this ETag, which rls limits list shows")
	return cmd
}

// deleteField sends a DELETE and prints the answer.
func deleteField(cmd *cobra.Command, client *adminClient, path string, query url.Values, reason, ifMatch string) error {
	if reason != "" {
		query.Set("reason", reason)
	}
	if ifMatch != "" {
		client = client.withHeader("If-Match", quoteTag(ifMatch))
	}
	var answer admin.Override
	return client.run(cmd, http.MethodDelete, path, query, nil, &answer, func(out io.Writer) {
		if answer.Path == "" {
			fmt.Fprintf(out, "deleted; the %s was not in force\n", kindText(answer.Kind))
			return
		}
		printChange(out, &answer, time.Now())
	})
}

func newLimitsCreate(client *adminClient) *cobra.Command {
	var domain, value string
	var flags changeFlags
	cmd := &cobra.Command{
		Use:   "create -d DOMAIN KEY[=VALUE][,KEY[=VALUE]…] {FIELD=VALUE … | --json-value JSON}",
		Short: "Create a rule that no limits file has",
		Long: "Creates a rule, or replaces a rule that was created before. The service checks the rule like a\n" +
			"rule of a limits file.\n" + descriptorHelp + "\n\n" +
			"FIELD is a field of a descriptor, or a field of rate_limit. If VALUE is not JSON, it is text.",
		Example: "  rls limits create -d shop plan=trial unit=minute requests_per_unit=20 shadow_mode=true\n" +
			"  rls limits create -d shop path=/login,ip --json-value '{\"rate_limits\": [{\"unit\": \"second\", \"requests_per_unit\": 1}]}'",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := parseTarget(domain, args[0])
			if err != nil {
				return err
			}
			fields := args[1:]
			switch {
			case value == "" && len(fields) == 0:
				return errors.New("give FIELD=VALUE arguments or --json-value")
			case value != "" && len(fields) > 0:
				return errors.New("give FIELD=VALUE arguments or --json-value, not both")
			case value != "":
				if fields, err = fieldsOf(value); err != nil {
					return fmt.Errorf("--json-value: %w", err)
				}
			}
			return flags.put(cmd, client, "rules", target.String(), fields)
		},
	}
	addDomainFlag(cmd, &domain)
	cmd.Flags().StringVar(&value, "json-value", "", "the rule as a JSON object")
	flags.add(cmd)
	return cmd
}

// fieldsOf returns the fields of a JSON object as FIELD=VALUE arguments.
func fieldsOf(object string) ([]string, error) {
	var values map[string]json.RawMessage
	err := json.Unmarshal([]byte(object), &values)
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fields = append(fields, name+"="+string(values[name]))
	}
	return fields, err
}

func newLimitsDelete(client *adminClient) *cobra.Command {
	return newDeleteCommand(client, "rules", &cobra.Command{
		Use:     "delete {-d DOMAIN KEY[=VALUE][,KEY[=VALUE]…] | --target TARGET}",
		Short:   "Delete a rule that was created at run time",
		Long:    "Deletes a rule that rls limits create has created. Rules of limits files stay.\n" + descriptorHelp,
		Example: "  rls limits delete -d shop plan=trial",
	})
}
