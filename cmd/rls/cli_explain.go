package main

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

func newExplain() *cobra.Command {
	var domain, requestLimit string
	var files []string
	var parseOptions limitsfile.Options
	client := &adminClient{}
	cmd := &cobra.Command{
		Use:   "explain -d DOMAIN KEY=VALUE[,KEY=VALUE…] [KEY=VALUE[,KEY=VALUE…] …]",
		Short: "Explain why a request is limited or not",
		Long: "Explains the answer to a request. Each argument is one descriptor. For each descriptor, the\n" +
			"command shows the rule and why the rule matches, the limits, the counters, and the answer to\n" +
			"the next hit. The command asks a running service, and charges nothing. With --limits, the\n" +
			"command only reads files.\n" +
			descriptorHelp,
		Example: "  rls explain -d shop remote_address=10.0.0.1\n" +
			"  rls explain -d shop service=checkout,path=/orders tenant=acme --admin https://rls:6070 --json\n" +
			"  rls explain -d shop tenant=acme --limits examples/limits.yaml",
		Args: argCount(1, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := explain.NewRequest(domain, args, requestLimit)
			if err != nil {
				return err
			}
			if len(files) > 0 {
				if cmd.Flags().Changed("admin") {
					return errors.New("--limits and --admin are both given; want one of them")
				}
				config, err := loadLimits(nil, files, parseOptions)
				if err != nil {
					return fmt.Errorf("limits files have problems:\n%w", err)
				}
				var store descriptors.Store
				store.Set(config)
				report := explain.New(explain.Options{Limits: &store}).Explain(cmd.Context(), req)
				return printAs(cmd.OutOrStdout(), client.asJSON, report, report.WriteText)
			}
			query := url.Values{explain.DomainParam: {domain}, explain.DescriptorParam: args, explain.FormatParam: {"json"}}
			if requestLimit != "" {
				query.Set(explain.LimitParam, requestLimit)
			}
			report := &explain.Report{}
			if err := client.call(cmd.Context(), http.MethodGet, explain.Path, query, nil, report); err != nil {
				return err
			}
			return printAs(cmd.OutOrStdout(), client.asJSON, report, report.WriteText)
		},
	}
	fs := cmd.Flags()
	addDomainFlag(cmd, &domain)
	_ = cmd.MarkFlagRequired("domain")
	cmd.ValidArgsFunction = completeDescriptor
	fs.StringSliceVar(&files, "limits", nil, "limits files, or directories of limits files; the command then asks no service")
	addMergeFlag(fs, &parseOptions.MergeDomains)
	fs.Lookup("merge").Usage += ", with --limits"
	fs.StringVar(&requestLimit, "limit", "", "limit that the request contains for each descriptor, such as 100/minute")
	client.addFlags(fs)
	client.addAnswerFlags(fs)
	return cmd
}
