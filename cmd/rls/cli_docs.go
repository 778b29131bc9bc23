package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// generatedPages returns the function that writes each page of docs that comes from the code.
func generatedPages() map[string]func(io.Writer) error {
	return map[string]func(io.Writer) error{
		"cli":           writeCommandPage,
		"limits-fields": limitsfile.WriteFieldsPage,
		"settings":      env.WriteDocs,
	}
}

// newDocs returns the hidden command rls docs. `make docs` uses it.
func newDocs() *cobra.Command {
	pages := generatedPages()
	names := slices.Sorted(maps.Keys(pages))
	return &cobra.Command{
		Use:       "docs " + strings.Join(names, "|"),
		Short:     "Print a page of docs that comes from the code",
		Hidden:    true,
		ValidArgs: names,
		Args:      cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			write := pages[args[0]]
			if write == nil {
				return fmt.Errorf("docs: got %q, want %s", args[0], fields.OneOf(args[0], names))
			}
			return write(cmd.OutOrStdout())
		},
	}
}

// writeCommandPage writes docs/cli.md: the help of each command.
func writeCommandPage(w io.Writer) error {
	var toc, help strings.Builder
	for _, path := range commandPaths(newRoot()) {
		root := newRoot() // a command keeps the flags of its last run
		cmd, _, err := root.Find(path)
		if err != nil {
			return err
		}
		title := strings.Join(append([]string{"rls"}, path...), " ")
		anchor := strings.ReplaceAll(title, " ", "-")
		fmt.Fprintf(&toc, "| [`%s`](#%s) | %s |\n", title, anchor, cmd.Short)
		fmt.Fprintf(&help, "\n## %s\n\n```text\n", title)
		root.SetOut(&help)
		root.SetArgs(append(path, "--help"))
		if err := root.Execute(); err != nil {
			return err
		}
		help.WriteString("```\n")
	}
	_, err := fmt.Fprintf(w, `# Commands

This page has the help of each command, as `+"`--help`"+` prints it. `+"`make docs`"+` writes this page from
the code. In the image, `+"`kubectl exec deploy/rls -- rls COMMAND`"+` runs a command in a pod.

| command | purpose |
|---|---|
%s%s`, toc.String(), help.String())
	return err
}

// commandPaths returns the names below cmd that lead to each command which users see. The first
// path is empty.
func commandPaths(cmd *cobra.Command) [][]string {
	paths := [][]string{{}}
	for _, child := range cmd.Commands() {
		if child.Hidden {
			continue
		}
		for _, path := range commandPaths(child) {
			paths = append(paths, append([]string{child.Name()}, path...))
		}
	}
	return paths
}
