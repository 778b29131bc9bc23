package main

import (
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// generatedPages returns a function for each page of docs that comes from the code. The function writes the page.
func generatedPages() map[string]func(io.Writer) error {
	return map[string]func(io.Writer) error{
		"cli":           commandPages(commandsTemplate),
		"limits-fields": limitsfile.WriteFieldsPage,
		"settings":      env.WriteDocs,
	}
}

// newDocs returns the hidden command rls docs. The build of packages uses it for the manual page.
func newDocs() *cobra.Command {
	pages := generatedPages()
	pages["man"] = commandPages(manualTemplate)
	return printOneOf(pages, &cobra.Command{
		Use: "docs", Short: "Print a page of docs that comes from the code", Hidden: true,
		ValidArgs: []string{"cli", "limits-fields", "man", "settings"},
	})
}

// printOneOf makes cmd print one of contents. The only argument of cmd is the key in contents.
func printOneOf(contents map[string]func(io.Writer) error, cmd *cobra.Command) *cobra.Command {
	name := cmd.Use
	cmd.Use += " " + strings.Join(cmd.ValidArgs, "|")
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		write := contents[args[0]]
		if write == nil {
			return fmt.Errorf("%s: got %q, want %s", name, args[0], fields.OneOf(args[0], cmd.ValidArgs))
		}
		return write(cmd.OutOrStdout())
	}
	return cmd
}

//go:embed cli.md.tmpl
var commandsTemplate string

//go:embed rls.1.tmpl
var manualTemplate string

// commandPages returns a function that writes the help of each command with a template, for docs/cli.md or rls(1).
func commandPages(pageTemplate string) func(io.Writer) error {
	return func(out io.Writer) error {
		root := newRoot()
		commands := visibleCommands(root)
		commands = slices.DeleteFunc(commands, func(cmd *cobra.Command) bool { return cmd.Name() == "serve" }) // as rls without a command
		root.InitDefaultHelpCmd()
		root.InitDefaultCompletionCmd()
		for _, cmd := range commands {
			cmd.InitDefaultHelpFlag()
		}
		functions := template.FuncMap{
			"sharedFlags": func(commands []*cobra.Command) string {
				flagSet := pflag.NewFlagSet("", pflag.ContinueOnError)
				for _, cmd := range commands {
					addFlags(flagSet, cmd, true)
				}
				return flagSet.FlagUsages()
			},
			"ownFlags": func(cmd *cobra.Command) string {
				flagSet := pflag.NewFlagSet("", pflag.ContinueOnError)
				addFlags(flagSet, cmd, false)
				return flagSet.FlagUsages()
			},
			// isLast reports whether a block of docs/cli.md ends after cmd. A command and its subcommands share a block.
			"isLast": func(cmd *cobra.Command) bool {
				i := slices.Index(commands, cmd) + 1
				return i == len(commands) || commands[i].Parent() == root
			},
			"withoutDescriptorNote": func(help string) string { return strings.ReplaceAll(help, "\n"+descriptorHelp, "") },
			"roff":                  strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace,
		}
		return template.Must(template.New("").Funcs(functions).Parse(pageTemplate)).Execute(out, commands)
	}
}

// sharedFlagNames are the flags that mean the same for each command. docs/cli.md describes them once.
var sharedFlagNames = []string{"addr", "admin", "ca", "cert", "help", "key", "merge", "new", "reason", "server-name", "strict", "tls", "token"}

// sharedFlagUsages are the texts of flags that mean the same for most commands.
var sharedFlagUsages = []string{"domain of the limits", "how long to wait for the answer", "print the answer of the API as JSON", "print the change without making it"}

// addFlags adds the flags of cmd to flags: the shared flags or all other flags.
func addFlags(flags *pflag.FlagSet, cmd *cobra.Command, wantsShared bool) {
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		isShared := slices.Contains(sharedFlagNames, f.Name) || slices.Contains(sharedFlagUsages, f.Usage)
		if isShared == wantsShared && flags.Lookup(f.Name) == nil {
			flags.AddFlag(f)
		}
	})
}

// visibleCommands returns cmd and all its subcommands that are not hidden.
func visibleCommands(cmd *cobra.Command) []*cobra.Command {
	commands := []*cobra.Command{cmd}
	for _, child := range cmd.Commands() {
		if !child.Hidden {
			commands = append(commands, visibleCommands(child)...)
		}
	}
	return commands
}
