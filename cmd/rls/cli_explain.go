package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

// newExplain returns the command rls explain.
func newExplain() *cobra.Command {
	var domain, ownLimit string
	var files []string
	var parseOptions limitsfile.Options
	client := &adminClient{}
	cmd := &cobra.Command{
		Use:   "explain -d DOMAIN KEY=VALUE[,KEY=VALUE…] [KEY=VALUE[,KEY=VALUE…] …]",
		Short: "Explain why a request is limited or not",
		Long: "Explains the answer to a request. Each argument is one descriptor. For each descriptor, the\n" +
			"command shows the rule and why the rule matches, the limits, the counters, and the answer to\n" +
			"the next hit. It charges nothing. The command asks a running service. With --limits, it only\n" +
			"reads files.\n" +
			descriptorHelp,
		Example: "  rls explain -d shop remote_address=10.0.0.1\n" +
			"  rls explain -d shop service=checkout,path=/orders tenant=acme --admin https://rls:6070 --json\n" +
			"  rls explain -d shop tenant=acme --limits examples/limits.yaml",
		Args: argCount(1, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := explain.NewRequest(domain, args, ownLimit)
			if err != nil {
				return err
			}
			if len(files) > 0 {
				if cmd.Flags().Changed("admin") {
					return errors.New("--limits and --admin are both given; want one of them")
				}
				report, err := explainFiles(cmd, files, parseOptions, req)
				if err != nil {
					return err
				}
				return printReport(cmd.OutOrStdout(), report, client.asJSON)
			}
			query := url.Values{explain.DomainParam: {domain}, explain.DescriptorParam: args, explain.FormatParam: {"json"}}
			if ownLimit != "" {
				query.Set(explain.LimitParam, ownLimit)
			}
			report := &explain.Report{}
			if err := client.callPath(cmd.Context(), http.MethodGet, explain.Path, query, nil, report); err != nil {
				return err
			}
			return printReport(cmd.OutOrStdout(), report, client.asJSON)
		},
	}
	fs := cmd.Flags()
	addDomainFlag(cmd, &domain)
	fs.StringSliceVar(&files, "limits", nil, "limits files, or directories of limits files; the command then asks no service")
	fs.BoolVar(&parseOptions.MergeDomains, "merge", false, "merge files of the same domain (MERGE_DOMAIN_CONFIG; with --limits)")
	fs.StringVar(&ownLimit, "limit", "", "limit that the request contains for each descriptor, such as 100/minute")
	client.debugConnection.addFlags(fs, "admin")
	client.addAnswerFlags(fs)
	return cmd
}

// explainFiles explains req by limits files.
func explainFiles(cmd *cobra.Command, paths []string, o limitsfile.Options, req *rlsv3.RateLimitRequest) (*explain.Report, error) {
	var files []limitsfile.File
	for _, path := range paths {
		found, _, err := filesource.Place{Root: path}.Read()
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	set, err := filesource.Parse(files, o)
	if err != nil {
		return nil, fmt.Errorf("limits files have problems:\n%w", err)
	}
	var store descriptors.Store
	store.Set(descriptors.Compile(set))
	return explain.New(explain.Options{Limits: &store}).Explain(cmd.Context(), req), nil
}

func printReport(out io.Writer, report *explain.Report, asJSON bool) error {
	if asJSON {
		return reports.JSON(out, report)
	}
	return report.WriteText(out)
}
