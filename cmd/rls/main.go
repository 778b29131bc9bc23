// Command rls is the rate-limit service, with a client and a checker of limits files. It
// wires the packages together. Only cmd/rls and cmd/rls/env read the environment.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/module"

	"github.com/seed-81f232ab/rls/internal/server"
)

func main() {
	os.Exit(run(os.Args))
}

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
	if err == nil {
		return 0
	}
	if code, isSilent := errors.AsType[exitCode](err); isSilent {
		return int(code)
	}
	if strings.HasPrefix(err.Error(), `required flag(s) "domain"`) {
		err = errors.New("--domain is missing; want the domain of the limits, such as -d shop")
	}
	fmt.Fprintln(newColourWriter(os.Stderr), "rls:", err)
	if failure, hasCode := errors.AsType[*errorWithCode](err); hasCode {
		return failure.code
	}
	return 1
}

// errorWithCode is an error that is printed and ends the process with a code.
type errorWithCode struct {
	code int
	error
}

func (e *errorWithCode) Unwrap() error { return e.error }

// exitCode is an error that ends the process with this code and prints nothing.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// commandArgs returns the arguments of the command line. Deployments of the incumbent run /bin/ratelimit. If the program or
// its first argument has a name of the incumbent's program, commandArgs returns no arguments, so that rls serves. The
// incumbent ignores further arguments too.
func commandArgs(args []string) []string {
	for _, arg := range args[:min(len(args), 2)] {
		if slices.Contains([]string{"ratelimit", "service_cmd"}, filepath.Base(arg)) {
			return []string{}
		}
	}
	return args[min(len(args), 1):]
}

func newRoot() *cobra.Command {
	currentBuild := thisBuild()
	root := &cobra.Command{
		Use:   "rls",
		Short: "Rate-limit service for Envoy",
		Long: "rls answers the ShouldRateLimit calls of Envoy, by limits declared in YAML.\n" +
			"Without a command, rls serves. Settings come from the environment (docs/settings.md).",
		Version: fmt.Sprintf("rls %s\ncommit %s\ndate %s\n%s %s/%s\n",
			currentBuild.Version, currentBuild.Commit, currentBuild.Date, runtime.Version(), runtime.GOOS, runtime.GOARCH),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	serve := newServe()
	root.SetVersionTemplate("{{.Version}}")
	root.RunE = serve.RunE
	root.Flags().AddFlagSet(serve.Flags())
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"service", "Serve:", []*cobra.Command{serve, newDoctor()}},
		{"files", "Check limits files before they are in force:", []*cobra.Command{newCheck(), newTest(), newDiff(), newPlan(), newSchema()}},
		{"requests", "Send requests to a running service:", []*cobra.Command{newHit(), newAcquire()}},
		{"see", "See what a running service does, and why:", []*cobra.Command{newExplain(), newTop(), newTail(), newQuota()}},
		{"change", "Change a running service:", []*cobra.Command{newLimitsCLI(), newReset()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.id
			root.AddCommand(cmd)
		}
	}
	root.SetFlagErrorFunc(flagError)
	return root
}

// version, commit and date are set by the build (deploy/scripts/ldflags).
var version, commit, date string

type build struct {
	Version string // the last tag, such as v1.2.0, or the version of the module
	Commit  string // the hash of the commit
	Date    string // the time of the commit, in RFC 3339 and UTC
}

const unknownBuild = "unknown"

var thisBuild = sync.OnceValue(func() build {
	info, _ := debug.ReadBuildInfo()
	return newBuild(build{Version: version, Commit: commit, Date: date}, info)
})

// newBuild returns the build that the linker has set, and fills its empty fields from info, which the Go command has
// recorded. In a clone, go build records the commit. If a version has no tag, go install records a pseudo-version,
// which contains the time and the start of the hash. info may be nil.
func newBuild(linkerBuild build, info *debug.BuildInfo) build {
	var goBuild build
	if info != nil {
		goBuild.Version = info.Main.Version
		if module.IsPseudoVersion(goBuild.Version) {
			goBuild.Commit, _ = module.PseudoVersionRev(goBuild.Version)
			if t, err := module.PseudoVersionTime(goBuild.Version); err == nil {
				goBuild.Date = t.UTC().Format(time.RFC3339)
			}
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				goBuild.Commit = s.Value
			case "vcs.time":
				goBuild.Date = s.Value
			}
		}
	}
	return build{
		Version: cmp.Or(linkerBuild.Version, goBuild.Version, unknownBuild),
		Commit:  cmp.Or(linkerBuild.Commit, goBuild.Commit, unknownBuild),
		Date:    cmp.Or(linkerBuild.Date, goBuild.Date, unknownBuild),
	}
}
