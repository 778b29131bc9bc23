package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/internal/server"
)

// The exit codes of rls acquire are the same as those of timeout(1).
const (
	exitTimedOut      = 124
	exitFailed        = 125
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the number of the signal
)

// passesSignals is true while a command runs. This process then sends its signals on to the command, and a second signal
// does not end this process.
var passesSignals atomic.Bool

type acquireFlags struct {
	grpcFlags
	permits int
	timeout time.Duration
}

func newAcquire() *cobra.Command {
	var flags acquireFlags
	cmd := &cobra.Command{
		Use:   "acquire -d DOMAIN KEY=VALUE[,KEY=VALUE…] -- COMMAND [ARGUMENT…]",
		Short: "Run a command when its permit comes",
		Long: "Waits for permits of one descriptor and then runs the command. If the limit has\n" +
			"algorithm: concurrency, rls renews the permits while the command runs, and gives them back\n" +
			"when the command ends.\n" +
			descriptorHelp + "\n\n" +
			"Exit code: the exit code of the command, or 128 plus the number of the signal that killed it.\n" +
			"Other exit codes: 124 if no permit came within --timeout, 125 if rls failed, 126 if the command\n" +
			"can't be run, 127 if the command was not found. rls passes signals on to the command.",
		Example: "  rls acquire -d jobs queue=reports --timeout 1m -- ./report.sh\n" +
			"  rls acquire -d partner api=orders -n 5 -- curl https://partner.example/orders",
		Args: cobra.ArbitraryArgs, // RunE checks the arguments, so that a mistake has the exit code 125
		RunE: func(cmd *cobra.Command, args []string) error {
			argsBeforeDash := cmd.ArgsLenAtDash()
			if argsBeforeDash != 1 || len(args) < 2 {
				return acquireFailure(errors.New("got no descriptor or no command, want KEY=VALUE -- COMMAND"))
			}
			return flags.run(cmd.Context(), cmd.ErrOrStderr(), args[0], args[1:])
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return acquireFailure(flagError(cmd, err)) })
	fs := cmd.Flags()
	flags.add(cmd)
	cmd.Flag("domain").Usage += " (required)"
	fs.IntVarP(&flags.permits, "permits", "n", 1, "number of permits that the command needs")
	fs.DurationVar(&flags.timeout, "timeout", 0, "how long to wait for the permits, such as 90s or 1h (default: no bound)")
	return cmd
}

func acquireFailure(err error) error { return &errorWithCode{exitFailed, err} }

func (f *acquireFlags) run(ctx context.Context, stderr io.Writer, descriptor string, command []string) error {
	entries, err := client.ParseDescriptor(descriptor)
	switch {
	case err != nil:
		return acquireFailure(err)
	case f.permits < 1:
		return acquireFailure(fmt.Errorf("-n: got %d, want at least 1", f.permits))
	case f.timeout < 0:
		return acquireFailure(fmt.Errorf("--timeout: got %s, want at least 0", f.timeout))
	}
	var config *tls.Config
	if f.useTLS {
		if config, err = f.tls.Config(); err != nil {
			return acquireFailure(err)
		}
	}
	path, err := exec.LookPath(command[0]) // a missing command must not take a permit
	if err != nil {
		return startError(command[0], err)
	}
	c, err := client.New(f.addr, client.Options{TLS: config})
	if err != nil {
		return acquireFailure(err)
	}
	defer func() { _ = c.Close() }()
	endSignals := make(chan os.Signal, 1)
	signal.Notify(endSignals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(endSignals)
	hold, err := f.acquire(ctx, stderr, c, entries)
	if err != nil {
		return err
	}
	if !hold.Limited() {
		fmt.Fprintf(stderr, "rls: no rule of domain %s limits %s; the command runs without a limit\n", printable(f.domain), printable(descriptor))
	}
	err = runCommand(stderr, path, command, hold, endSignals)
	if releaseErr := hold.Release(); releaseErr != nil {
		fmt.Fprintln(stderr, "rls: the release failed, so the permit is free again only when its hold expires:", releaseErr)
	}
	return err
}

// acquire waits for the permits within the timeout. If the wait is long, acquire says so.
func (f *acquireFlags) acquire(ctx context.Context, stderr io.Writer, c *client.Client, descriptor client.Descriptor) (*client.Hold, error) {
	longWait := time.AfterFunc(2*time.Second, func() {
		fmt.Fprintf(stderr, "rls: still waiting for a permit; rls hit shows whether %s answers\n", f.addr)
	})
	defer longWait.Stop()
	waitCtx := ctx
	if f.timeout > 0 {
		var cancel context.CancelFunc
		waitCtx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	hold, err := c.AcquireHoldN(waitCtx, f.permits, f.domain, descriptor)
	switch {
	case err == nil:
		return hold, nil
	case ctx.Err() != nil:
		return nil, interruptedError(endingSignal(ctx), "before the permit came")
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &errorWithCode{exitTimedOut, f.timeoutError(err)}
	}
	return nil, acquireFailure(err)
}

// timeoutError says why no permit came. If the last call failed, err has the reason.
func (f *acquireFlags) timeoutError(err error) error {
	if waitErr, isLate := errors.AsType[*client.WaitError](err); isLate {
		return fmt.Errorf("permits come in %s at the earliest, after the deadline of --timeout", waitErr.Wait.Round(time.Millisecond))
	}
	problem := fmt.Sprintf("no permit came within %s; ", f.timeout)
	if s, isOutage := status.FromError(err); isOutage {
		_, outage, _ := strings.Cut(s.Message(), "the last call failed: ")
		return fmt.Errorf("%s%w", problem, connectionError(f.addr, true, status.Error(s.Code(), outage)))
	}
	return fmt.Errorf("%severy answer of %s was a denial, or none came; rls explain shows the permits that are left", problem, f.addr)
}

// interruptedError returns the error for the signal s, which came before the command started. moment is the time in words,
// such as "before the permit came".
func interruptedError(s os.Signal, moment string) error {
	code := exitSignal
	if number, ok := s.(syscall.Signal); ok {
		code += int(number)
	}
	return &errorWithCode{code, errors.New("interrupted " + moment)}
}

func endingSignal(ctx context.Context) syscall.Signal {
	if errors.Is(context.Cause(ctx), server.ErrInterrupted) {
		return syscall.SIGINT
	}
	return syscall.SIGTERM
}

// runCommand runs the command at path to its end and returns its exit code as an error. Before the command starts, a
// signal in endSignals ends rls. Then runCommand passes signals to the command. After the end of the command,
// signals have no effect, so that rls can release the hold and exit with the code of the command.
func runCommand(stderr io.Writer, path string, command []string, hold *client.Hold, endSignals chan os.Signal) error {
	passesSignals.Store(true)
	defer passesSignals.Store(false)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, signalsForCommand()...)
	signal.Stop(endSignals) // from here on, all signals go to the channel signals
	select {
	case s := <-endSignals:
		return interruptedError(s, "before the command started")
	default:
	}

	cmd := exec.Command(path)
	cmd.Args = command
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return startError(command[0], err)
	}
	commandEnd := make(chan error, 1)
	go func() { commandEnd <- cmd.Wait() }()
	holdLost := hold.Lost()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // Signal fails only if the command has ended
		case <-holdLost:
			holdLost = nil
			fmt.Fprintln(stderr, "rls: the permit is lost, so another holder can get it; the command goes on")
		case err := <-commandEnd:
			return commandError(cmd.ProcessState, err)
		}
	}
}

func commandError(state *os.ProcessState, err error) error {
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return acquireFailure(err)
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitCode(exitSignal + int(status.Signal()))
	}
	if code := state.ExitCode(); code != 0 {
		return exitCode(code)
	}
	return nil
}

func startError(name string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	return &errorWithCode{code, fmt.Errorf("command %s: %w", printable(name), err)}
}
