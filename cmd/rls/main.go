// Command rls is the rate-limit service, with a client and a checker of limits files. It
// wires the packages together. Only cmd/rls and cmd/rls/env read the environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
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

// commandArgs returns the arguments of the command line. Under the incumbent's name it
// ignores all arguments, as the incumbent does, so that /bin/ratelimit starts the service.
func commandArgs(args []string) []string {
	if len(args) == 0 || filepath.Base(args[0]) == "ratelimit" {
		return []string{}
	}
	return args[1:]
}

// newRoot returns the command rls.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "rls",
		Short: "Rate-limit service for Envoy",
		Long: "rls answers the ShouldRateLimit calls of Envoy, by limits declared in YAML.\n" +
			"Without a command, rls serves. Settings come from the environment (docs/settings.md).",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	serve := newServe()
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
			b := thisBuild()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "rls %s\ncommit %s\ndate %s\n%s %s/%s\n", b.Version, b.Commit, b.Date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
