package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

// stdinPath is the path that stands for the standard input.
const stdinPath = "-"

// newCheck returns the command rls check.
func newCheck() *cobra.Command {
	var strict, ignoreDotFiles, asJSON bool
	var parseOptions limitsfile.Options
	cmd := &cobra.Command{
		Use:   "check PATH…",
		Short: "Check limits files and print what they limit",
		Long: "Checks the limits files of all PATHs (files or directories) together, as the service\n" +
			"loads them. The PATH - is the standard input. Prints the tree of limits, or every problem\n" +
			"with its file, line and column.\n" +
			"Exit code: 0 if the service would load the files, else 1.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			c := &limitsCheck{Problems: []checkProblem{}, Warnings: []checkProblem{}}
			config := c.run(cmd.InOrStdin(), paths, strict, ignoreDotFiles, parseOptions)
			if asJSON {
				if err := reports.JSON(cmd.OutOrStdout(), c); err != nil {
					return err
				}
			} else if err := c.writeText(cmd.OutOrStdout(), cmd.ErrOrStderr(), config, strict); err != nil {
				return err
			}
			if !c.OK {
				return exitCode(1)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as problems")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print problems, warnings and rules as JSON")
	cmd.Flags().BoolVar(&parseOptions.MergeDomains, "merge", false, "merge files of the same domain (MERGE_DOMAIN_CONFIG)")
	cmd.Flags().BoolVar(&ignoreDotFiles, "ignore-dot-files", false, "skip files and directories whose names start with a dot (RUNTIME_IGNOREDOTFILES)")
	return cmd
}

// limitsCheck is the result of a check.
type limitsCheck struct {
	OK       bool           `json:"ok"` // the service would load the files, or with --strict no warning either
	Problems []checkProblem `json:"problems"`
	Warnings []checkProblem `json:"warnings"`
	Skipped  []string       `json:"skipped,omitempty"` // files that are no limits files, with the reason
	Rules    []checkedRule  `json:"rules,omitempty"`   // in file order, if there are no problems
}

// checkProblem is a problem of a limits file, as JSON shows it.
type checkProblem struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Path   string `json:"path,omitempty"` // of the descriptor
	Reason string `json:"reason"`

	text string // for people
}

// checkedRule is a descriptor with limits.
type checkedRule struct {
	Rule   string `json:"rule"`
	Place  string `json:"place"`
	Limits string `json:"limits"`
}

// run checks the limits files in all paths. It returns the limits, or nil after a problem.
func (c *limitsCheck) run(stdin io.Reader, paths []string, strict, ignoreDotFiles bool, o limitsfile.Options) *descriptors.Config {
	files := c.read(stdin, paths, ignoreDotFiles)
	set, err := filesource.Parse(files, o)
	if err != nil {
		c.addError(err)
		return nil
	}
	for _, p := range set.Warnings {
		c.Warnings = append(c.Warnings, newCheckProblem(p))
	}
	if len(c.Problems) > 0 {
		return nil
	}
	c.OK = !strict || len(c.Warnings) == 0
	config := descriptors.Compile(set)
	config.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
		d := trail[len(trail)-1]
		c.Rules = append(c.Rules, checkedRule{limitsfile.Path(domain, trail), fmt.Sprintf("%s:%d", d.File, d.Line), d.Summary()})
	})
	return config
}

// read reads the limits files in all paths. It adds a problem for each path that it can't read.
func (c *limitsCheck) read(stdin io.Reader, paths []string, ignoreDotFiles bool) []limitsfile.File {
	var files []limitsfile.File
	for i, path := range paths {
		if path == stdinPath {
			if slices.Contains(paths[:i], stdinPath) {
				c.addError(errors.New("the path - is given twice; want it once"))
				continue
			}
			f, err := readStdin(stdin)
			if err != nil {
				c.addError(err)
				continue
			}
			files = append(files, f)
			continue
		}
		found, skipped, err := filesource.Place{Root: path, IgnoreDotFiles: ignoreDotFiles}.Read()
		for _, s := range skipped {
			c.Skipped = append(c.Skipped, fmt.Sprint(s))
		}
		if err != nil {
			c.addError(err)
		}
		files = append(files, found...)
	}
	return files
}

// readStdin reads a limits file from the standard input.
func readStdin(stdin io.Reader) (limitsfile.File, error) {
	data, err := io.ReadAll(io.LimitReader(stdin, limitsfile.DefaultMaxFileBytes+1)) // Parse rejects larger files
	if err != nil {
		return limitsfile.File{}, fmt.Errorf("stdin: %w", err)
	}
	return limitsfile.File{Name: "stdin", Data: data}, nil
}

// addError adds the problems of err.
func (c *limitsCheck) addError(err error) {
	var problems fields.Problems
	if !errors.As(err, &problems) {
		c.Problems = append(c.Problems, checkProblem{Reason: err.Error(), text: err.Error()})
		return
	}
	for _, p := range problems {
		c.Problems = append(c.Problems, newCheckProblem(p))
	}
}

func newCheckProblem(p fields.Problem) checkProblem {
	return checkProblem{File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Reason: p.Reason, text: p.String()}
}

// writeText writes the limits to out, and all else to errOut. config is nil if there is a problem.
func (c *limitsCheck) writeText(out, errOut io.Writer, config *descriptors.Config, strict bool) error {
	for _, s := range c.Skipped {
		fmt.Fprintln(errOut, "skipped:", s)
	}
	for _, p := range c.Problems {
		fmt.Fprintln(errOut, p.text)
	}
	prefix := "warning: "
	if strict {
		prefix = ""
	}
	for _, p := range c.Warnings {
		fmt.Fprintln(errOut, prefix+p.text)
	}
	if !c.OK {
		return nil
	}
	return config.WriteTree(out)
}
