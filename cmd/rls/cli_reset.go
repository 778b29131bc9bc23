package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
)

func newReset() *cobra.Command {
	client := &adminClient{}
	var domain string
	var isPrefix, isDryRun bool
	var maxCounters int
	cmd := &cobra.Command{
		Use:   "reset -d DOMAIN KEY=VALUE[,KEY=VALUE…] | reset -d DOMAIN --prefix [KEY=VALUE,KEY…]",
		Short: "Reset the counters of a request, or all counters that start with its entries",
		Long: "Resets the counters of a request. The descriptor has the keys and values of the request.\n" +
			descriptorHelp + "\n" +
			"With --prefix, the command resets all counters that begin with these entries. If the last key has no\n" +
			"value, it stands for all values of this key. Without entries, the command resets all counters of the\n" +
			"domain. With --dry-run, the command only counts the counters. rls explain shows single counters.",
		Example: "  rls reset -d shop remote_address=10.0.0.1,path=/login\n" +
			"  rls reset -d shop --prefix tenant=acme --dry-run",
		Args: func(cmd *cobra.Command, args []string) error {
			if isPrefix {
				return argCount(0, 1)(cmd, args)
			}
			if isDryRun || cmd.Flags().Changed("max") {
				return errors.New("--dry-run and --max need --prefix")
			}
			return argCount(1, 1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !isPrefix {
				target, err := parseRequest(domain, args[0])
				if err != nil {
					return err
				}
				query := url.Values{"target": {target.RequestString()}}
				return client.run(cmd, http.MethodDelete, "counters", query, nil, new(admin.Reset), "reset")
			}
			prefix, err := parseCounterPrefix(domain, args)
			if err != nil {
				return err
			}
			if isDryRun && !cmd.Flags().Changed("max") {
				maxCounters = admin.MaxCounters
			}
			query := url.Values{"prefix": {prefix.String()}, "max": {strconv.Itoa(maxCounters)}, "dry_run": {strconv.FormatBool(isDryRun)}}
			if !cmd.Flag("timeout").Changed {
				client.timeout = time.Minute // Redis may have many keys
			}
			return client.run(cmd, http.MethodDelete, "counters", query, nil, new(admin.ResetByPrefix), "reset by prefix")
		},
	}
	addDomainFlag(cmd, &domain)
	_ = cmd.MarkFlagRequired("domain")
	cmd.ValidArgsFunction = completeDescriptor
	client.addFlags(cmd.Flags())
	client.addAnswerFlags(cmd.Flags())
	cmd.Flags().BoolVar(&isPrefix, "prefix", false, "reset all counters that start with these entries")
	cmd.Flags().BoolVar(&isDryRun, "dry-run", false, "with --prefix: count the counters and reset none")
	cmd.Flags().IntVar(&maxCounters, "max", admin.DefaultMaxCounters, "with --prefix: reset nothing if there are more counters")
	return cmd
}

// parseCounterPrefix returns the prefix with a domain and the entries in args. Without args, the prefix has no entries.
func parseCounterPrefix(domain string, args []string) (descriptors.CounterPrefix, error) {
	prefix := descriptors.CounterPrefix{Domain: domain}
	if len(args) == 0 {
		return prefix, nil
	}
	entries, hasValue, err := entrytext.Parse(args[0])
	if err == nil {
		err = descriptors.Target{Domain: domain, Entries: entries}.Check()
	}
	if err != nil {
		return prefix, fmt.Errorf("%q is no prefix: %w", args[0], err)
	}
	prefix.Entries, prefix.HasAnyValue = entries, !hasValue[len(hasValue)-1]
	if i := slices.Index(hasValue, false); i >= 0 && i < len(hasValue)-1 {
		return prefix, fmt.Errorf("%q is no prefix: entry %d has no =; only the last key can stand for all its values", args[0], i+1)
	}
	return prefix, nil
}
