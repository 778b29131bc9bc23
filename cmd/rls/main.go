// Command rls is the rate-limit service, with a client and a checker of limits files. It
// wires the packages together. Only cmd/rls and cmd/rls/env read the environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/internal/server"
)

func main() {
	os.Exit(run(os.Args))
}

// run runs the command line and returns the exit code.
func run(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		var cause error
		if <-signals == os.Interrupt {
			cause = server.ErrInterrupted
		}
		cancel(cause)
		if passesSignals.Load() {
			return
		}
		<-signals // a second signal ends the process
		os.Exit(1)
	}()
	root := newRoot()
	root.SetArgs(commandArgs(args))
	err := root.ExecuteContext(ctx)
	var code exitCode
	var failure *codedError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintln(os.Stderr, "rls:", err)
	if errors.As(err, &failure) {
		return failure.code
	}
	return 1
}

// codedError is an error that is printed and ends the process with a code.
type codedError struct {
	code int
	error
}

func (e *codedError) Unwrap() error { return e.error }

// exitCode is an error that ends the process with this code and prints nothing.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// incumbentNames are the names of the incumbent's program.
var incumbentNames = []string{"ratelimit", "service_cmd"}

// commandArgs returns the arguments of the command line. A name of the incumbent's program, as the program or as the
// first argument, starts the service, because deployments have the command /bin/ratelimit. Further arguments are
// ignored, as the incumbent does.
func commandArgs(args []string) []string {
	for _, arg := range args[:min(len(args), 2)] {
		if slices.Contains(incumbentNames, filepath.Base(arg)) {
			return []string{}
		}
	}
	return args[min(len(args), 1):]
}

// newRoot returns the command rls.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "rls",
		Short: "Rate-limit service for Envoy",
		Long: "rls answers the ShouldRateLimit calls of Envoy, by limits declared in YAML.\n" +
			"Without a command, rls serves. Settings come from the environment (docs/settings.md).",
		Version:       versionText(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	serve := newServe()
	root.SetVersionTemplate("{{.Version}}")
	root.RunE = serve.RunE
	root.Flags().AddFlagSet(serve.Flags())
	root.AddCommand(serve, newCheck(), newTest(), newDiff(), newPlan(), newSchema(), newHit(), newAcquire(), newTail(), newTop(), newExplain(), newLimitsCLI(), newCounter(), newVersion(), newSettings(), newDoctor(), newDocs())
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, and the commit and its date",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}

func versionText() string {
	b := thisBuild()
	return fmt.Sprintf("rls %s\ncommit %s\ndate %s\n%s %s/%s\n", b.Version, b.Commit, b.Date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
