package main

import (
	"errors"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/base/heap"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

func newCheck() *cobra.Command {
	var isStrict, ignoreDotFiles, asJSON bool
	var parseOptions limitsfile.Options
	cmd := &cobra.Command{
		Use:   "check PATH…",
		Short: "Check limits files and print what they limit",
		Long: "Checks the limits files of all PATHs (files or directories) together, as the service\n" +
			"loads them. The PATH - is the standard input. Prints the tree of limits, or every problem\n" +
			"with its file, line and column.\n" +
			"Exit code: 0 if the service would load the files, else 1.",
		Args: argCount(1, math.MaxInt),
		RunE: func(cmd *cobra.Command, paths []string) error {
			defer heap.BeginLoad()()
			files, skippedFiles, errs := readLimits(cmd.InOrStdin(), paths, ignoreDotFiles)
			check, config := newLimitsCheck(files, errs, isStrict, parseOptions)
			check.SkippedFiles = skippedFiles
			if asJSON && config != nil {
				check.Rules, check.Limits = checkedRules(config), config.Hash()
			}
			err := printAs(cmd.OutOrStdout(), asJSON, check, func(out io.Writer) error {
				if err := reports.Text(cmd.ErrOrStderr(), answers.Lookup("check"), check); err != nil || !check.OK {
					return err
				}
				return config.WriteTree(out)
			})
			if err == nil && !check.OK {
				return exitCode(1)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&isStrict, "strict", false, "treat warnings as problems")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print problems, warnings, rules and the hash of the limits as JSON")
	addMergeFlag(cmd.Flags(), &parseOptions.MergeDomains)
	cmd.Flags().BoolVar(&ignoreDotFiles, "ignore-dot-files", false, "skip files and directories whose names start with a dot (RUNTIME_IGNOREDOTFILES)")
	return cmd
}

type limitsCheck struct {
	OK           bool             `json:"ok"` // the service would load the files; with --strict, the files also have no warnings
	Problems     []fields.Problem `json:"problems"`
	Warnings     []fields.Problem `json:"warnings"`
	SkippedFiles []string         `json:"skipped,omitempty"` // the files that are no limits files, with the reasons
	Rules        []checkedRule    `json:"rules,omitempty"`   // in the order of the files; empty if there are problems
	Limits       string           `json:"limits,omitempty"`  // the hash that rls limits show --replicas prints for these limits
	IsStrict     bool             `json:"-"`                 // a warning is a problem
}

type checkedRule struct {
	Rule   string `json:"rule"`
	Place  string `json:"place"`
	Limits string `json:"limits"`
}

// newLimitsCheck checks limits files. errs are the errors of files that can't be read. After a problem, the
// returned Config is nil.
func newLimitsCheck(files []limitsfile.File, errs []error, isStrict bool, limitsOptions limitsfile.Options) (*limitsCheck, *descriptors.Config) {
	check := &limitsCheck{Problems: []fields.Problem{}, Warnings: []fields.Problem{}, IsStrict: isStrict}
	set, err := filesource.Parse(files, limitsOptions)
	for _, err := range append(errs, err) {
		if problems := fields.Problems(nil); errors.As(err, &problems) {
			check.Problems = append(check.Problems, problems...)
		} else if err != nil {
			check.Problems = append(check.Problems, fields.Problem{Reason: err.Error()})
		}
	}
	if err == nil {
		check.Warnings = append(check.Warnings, set.Warnings...)
	}
	if len(check.Problems) > 0 {
		return check, nil
	}
	for _, d := range set.Domains {
		if len(d.Descriptors) == 0 {
			check.Warnings = append(check.Warnings, fields.Problem{File: d.File, Line: d.Line, Path: d.Name, Reason: "the domain has no rules, so nothing in it is limited; add descriptors, or remove the domain"})
		}
	}
	check.OK = !isStrict || len(check.Warnings) == 0
	return check, descriptors.Compile(set)
}

func checkedRules(config *descriptors.Config) (rules []checkedRule) {
	config.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
		d := trail[len(trail)-1]
		rules = append(rules, checkedRule{limitsfile.Path(domain, trail), fields.FileLine(d.File, d.Line), d.Summary()})
	})
	return rules
}
