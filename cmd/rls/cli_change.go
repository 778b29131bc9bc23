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

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/admin"
)

// change is a change of limits at run time. Flags set its fields.
type change struct {
	client *adminClient

	domain, target string // target is as rls limits list shows it
	isRule, isAll  bool

	duration        time.Duration
	reason, ifMatch string
	isNew, isDryRun bool
}

// addTargetFlags adds the flags that say what to change. ruleHelp describes --rule.
func (c *change) addTargetFlags(cmd *cobra.Command, ruleHelp string) {
	cmd.Flags().StringVarP(&c.domain, "domain", "d", "", "domain of the limits")
	cmd.Flags().BoolVar(&c.isRule, "rule", false, ruleHelp)
	cmd.Flags().BoolVar(&c.isAll, "all", false, "all requests, in place of a descriptor: replaces SHADOW_MODE")
	cmd.MarkFlagsMutuallyExclusive("all", "domain")
	cmd.MarkFlagsMutuallyExclusive("all", "rule")
}

// addPutFlags adds the flags of a new value. endHelp says what --for can be.
func (c *change) addPutFlags(cmd *cobra.Command, endHelp string) {
	fs := cmd.Flags()
	fs.DurationVar(&c.duration, "for", 0, "duration of the change, such as 90s or 1h"+endHelp)
	addReasonFlag(cmd, &c.reason)
	fs.BoolVar(&c.isDryRun, "dry-run", false, "print the change without making it")
	fs.StringVar(&c.ifMatch, "if-match", "", "change only the value with this ETag, which rls limits list shows")
	fs.BoolVar(&c.isNew, "new", false, "fail if the target already has a value")
}

func addReasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "reason of the change; the history and rls explain show it")
}

// locate returns the path of the target in the admin API, its query, and the arguments behind the descriptor.
func (c *change) locate(args []string) (path string, query url.Values, others []string, err error) {
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

// put sends FIELD=VALUE arguments to a path of the admin API, and prints the answer.
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
		if fields, err = intoRateLimit(fields); err != nil {
			return err
		}
	}
	value, err := overrideJSON(fields)
	if err != nil {
		return err
	}
	query.Set("dry_run", strconv.FormatBool(c.isDryRun))
	return c.send(cmd, http.MethodPut, path, query, value)
}

// remove deletes the value of a target, and prints the answer.
func (c *change) remove(cmd *cobra.Command, path string, query url.Values) error {
	query.Set("reason", c.reason)
	return c.send(cmd, http.MethodDelete, path, query, nil)
}

// send sends a change with its condition.
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

func quoteJSON(text string) string {
	quoted, _ := json.Marshal(text) // a string never fails
	return string(quoted)
}
