package main

import (
	_ "embed"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/goldentest"
)

func TestPagesOfCommandsAreUpToDate(t *testing.T) {
	goldentest.RequireText(t, "../../docs/cli.md", commandsPage(t, commandsTemplate))
	goldentest.RequireText(t, "../../deploy/package/rls.1", commandsPage(t, manualTemplate))
}

func TestManualPageHasEachCommand(t *testing.T) {
	page := commandsPage(t, manualTemplate)
	assert.Contains(t, page, "\n.SH rls limits show\n.nf\nShows each rule in force")
	assert.Contains(t, page, `\-\-admin string`)
	assert.Contains(t, page, `Write \e, for a comma`)
}

//go:embed testdata/cli.md.tmpl
var commandsTemplate string

//go:embed testdata/rls.1.tmpl
var manualTemplate string

// commandsPage returns the help of each command in the form of a template, for docs/cli.md or rls(1).
func commandsPage(t *testing.T, pageTemplate string) string {
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
	var page strings.Builder
	require.NoError(t, template.Must(template.New("").Funcs(functions).Parse(pageTemplate)).Execute(&page, commands))
	return page.String()
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
