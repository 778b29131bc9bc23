package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
)

// version is the version that the build sets (-ldflags "-X main.version=…"). If it is empty,
// buildVersion returns the commit or the version of the module.
var version string

// newVersion returns the command rls version.
func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "rls %s %s %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return info.Main.Version
}

// newSettings returns the hidden command rls settings, for make docs.
func newSettings() *cobra.Command {
	return &cobra.Command{
		Use:    "settings",
		Short:  "Print docs/settings.md",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return env.WriteDocs(cmd.OutOrStdout()) },
	}
}
