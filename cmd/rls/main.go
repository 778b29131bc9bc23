// Command rls is the rate-limit service, a client to try it with, and a checker
// for limits files. It is where the parts are put together, and the only place
// that reads the environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(os.Args))
}

// run runs the command line and returns the process's exit code.
func run(args []string) int {
	ctx, stop := signalContext()
	defer stop()
	root := newRoot()
	root.SetArgs(commandArgs(args))
	err := root.ExecuteContext(ctx)
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintln(os.Stderr, "rls:", err)
	return 1
}

// exitCode ends the process with that code and nothing more to say.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// commandArgs are the arguments that count. Under the incumbent's name there are
// none, as there: images that start /bin/ratelimit start the service.
func commandArgs(args []string) []string {
	if len(args) == 0 || filepath.Base(args[0]) == "ratelimit" {
		return []string{}
	}
	return args[1:]
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "rls",
		Short: "Rate-limit service for Envoy",
		Long: "rls answers Envoy's ShouldRateLimit by limits declared in YAML.\n" +
			"Without a command it serves. Settings come from the environment: see docs/settings.md.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	serve := newServe()
	root.RunE = serve.RunE
	root.Flags().AddFlagSet(serve.Flags())
	root.AddCommand(serve, newCheck(), newHit(), newLimitsCommand(), newCounter(), newVersion(), newSettings())
	return root
}

// signalContext is done on the first SIGINT or SIGTERM; a second one ends the
// process at once.
func signalContext() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
			return
		}
		<-signals
		os.Exit(1)
	}()
	return ctx, cancel
}
