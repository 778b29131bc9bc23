package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/whatif/limitsplan"
)

type planOptions struct {
	limitsplan.Options
	limitsOptions limitsfile.Options

	logPaths    []string
	mappingPath string // the mapping of an access log; empty for a decision log
	asJSON      bool
	conditions  []string // such as "denied > 1%"
}

func newPlan() *cobra.Command {
	options := planOptions{}
	cmd := &cobra.Command{
		Use:   "plan NEW… --from LOG",
		Short: "Replay recorded calls against new limits",
		Long: "Replays the calls of a decision log (DECISION_LOG=all) or an access log against the limits\n" +
			"files NEW, on a virtual clock. Prints which calls the new limits would have denied, by rule\n" +
			"and by key, and which calls were denied when they were recorded. docs/planning-limits.md\n" +
			"describes the report.\n" +
			"Exit code: 1 if a condition of --fail-if holds, 2 if a file has mistakes or no call meets a\n" +
			"rule of NEW, else 0.",
		Example: "  rls plan new-limits.yaml --from decisions.log --fail-if 'denied > 1%'\n" +
			"  rls plan new-limits.yaml --from access.log.gz --access-log mapping.yaml",
		RunE: func(cmd *cobra.Command, paths []string) error {
			if options.MaxKeys < 1 {
				return inputError(fmt.Errorf("--keys: got %d, want at least 1", options.MaxKeys))
			}
			report, conditions, err := options.run(cmd, paths)
			if err != nil {
				return inputError(err)
			}
			for _, condition := range conditions {
				holds, text := condition.Check(report)
				fmt.Fprintln(cmd.ErrOrStderr(), text)
				if holds {
					err = exitCode(1)
				}
			}
			return err
		},
	}
	requirePaths(cmd)
	fs := cmd.Flags()
	fs.StringArrayVar(&options.logPaths, "from", nil, "`LOG` with the recorded calls, as it is or in gzip, or - for the standard input; repeat the flag for the log of each replica")
	fs.StringVar(&options.mappingPath, "access-log", "", "read the logs as JSON access logs; `FILE` maps their fields to descriptors")
	fs.StringArrayVar(&options.conditions, "fail-if", nil, "exit with 1 if the `CONDITION` holds, such as 'denied > 1%': a name (denied, newly_denied, newly_admitted or newly_denied_keys), then > and a number or percentage")
	fs.BoolVar(&options.asJSON, "json", false, "print the report as JSON")
	fs.IntVar(&options.MaxKeys, "keys", 20, "maximum number of keys in the report")
	fs.BoolVar(&options.ShadowMode, "shadow-mode", false, "the service is in shadow mode (SHADOW_MODE)")
	fs.BoolVar(&options.QuotaMode, "quota-mode", false, "all descriptors are in quota mode (QUOTA_MODE)")
	fs.BoolVar(&options.AllOrNone, "all-or-none", false, "charge all limits of a request or none (STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT)")
	addMergeFlag(fs, &options.limitsOptions.MergeDomains)
	return cmd
}

func (o *planOptions) run(cmd *cobra.Command, paths []string) (*limitsplan.Report, []*limitsplan.FailCondition, error) {
	var conditions []*limitsplan.FailCondition
	for _, text := range o.conditions {
		c, err := limitsplan.ParseFailCondition(text)
		if err != nil {
			return nil, nil, err
		}
		conditions = append(conditions, c)
	}
	if len(o.logPaths) == 0 {
		return nil, nil, errors.New("--from is missing; want the path of a decision log or an access log")
	}
	config, err := loadLimits(cmd.InOrStdin(), paths, o.limitsOptions)
	if err != nil {
		return nil, nil, fmt.Errorf("new limits files have mistakes:\n%w", err)
	}
	readers, closeLogs, err := o.openLogs(cmd.InOrStdin())
	defer closeLogs()
	if err != nil {
		return nil, nil, err
	}
	calls, err := limitsplan.Merge(readers...)
	if err != nil {
		return nil, nil, err
	}
	report, err := limitsplan.Run(cmd.Context(), config, calls, o.Options)
	if err != nil {
		return nil, nil, err
	}
	return report, conditions, printAs(cmd.OutOrStdout(), o.asJSON, report, report.WriteText)
}

// openLogs opens all logs. The caller must call closeLogs, even after an error.
func (o *planOptions) openLogs(stdin io.Reader) (readers []limitsplan.Reader, closeLogs func(), err error) {
	var files []*os.File
	closeLogs = func() {
		for _, file := range files {
			_ = file.Close() // the file was only read, so an error loses nothing
		}
	}
	var mapping *limitsplan.Mapping
	if o.mappingPath != "" {
		data, err := readBoundedFile(o.mappingPath, limitsplan.MaxMappingBytes)
		if err != nil {
			return nil, closeLogs, err
		}
		if mapping, err = limitsplan.ParseMapping(o.mappingPath, data); err != nil {
			return nil, closeLogs, err
		}
	}
	for _, path := range o.logPaths {
		input := stdin
		if path != stdinPath {
			file, err := os.Open(path)
			if err != nil {
				return nil, closeLogs, err
			}
			files = append(files, file)
			input = file
		}
		reader, err := limitsplan.NewReader(path, input, mapping)
		if err != nil {
			return nil, closeLogs, err
		}
		readers = append(readers, reader)
	}
	return readers, closeLogs, nil
}
