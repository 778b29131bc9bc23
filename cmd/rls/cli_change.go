package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
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

// put sends a PUT with FIELD=VALUE arguments to a path of the admin API, and prints the answer.
func (f *changeFlags) put(cmd *cobra.Command, client *adminClient, path string, query url.Values, fields []string) error {
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

// changeTarget is what a change is about: a descriptor of the limits files, a rule of run time, or SHADOW_MODE.
type changeTarget struct {
	domain, text  string // text is the target as rls limits list shows it
	isRule, isAll bool
}

// add adds the flags to cmd. ruleHelp describes --rule.
func (t *changeTarget) add(cmd *cobra.Command, ruleHelp string) {
	cmd.Flags().StringVarP(&t.domain, "domain", "d", "", "domain of the limits")
	cmd.Flags().BoolVar(&t.isRule, "rule", false, ruleHelp)
	cmd.Flags().BoolVar(&t.isAll, "all", false, "all requests, in place of a descriptor: replaces SHADOW_MODE")
	cmd.MarkFlagsMutuallyExclusive("all", "domain")
	cmd.MarkFlagsMutuallyExclusive("all", "rule")
}

// read returns the path of the target in the admin API, its query, and the arguments behind the descriptor.
func (t *changeTarget) read(args []string) (path string, query url.Values, others []string, err error) {
	path = "overrides"
	if t.isRule {
		path = "rules"
	}
	switch {
	case t.isAll && t.text == "":
		return "shadow-mode", url.Values{}, args, nil
	case t.text != "" && t.domain == "" && !t.isAll:
		return path, url.Values{"target": {t.text}}, args, nil
	case t.text != "" || t.domain == "" || len(args) == 0:
		return "", nil, nil, errors.New("give -d DOMAIN and a descriptor, or another target (--help lists them)")
	}
	target, err := parseTarget(t.domain, args[0])
	return path, url.Values{"target": {target.String()}}, args[1:], err
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
