// Command mutants changes the code in small ways, and runs the tests of its package with each change. It
// fails if a change passes the tests and survivors.txt gives no reason.
//
// It builds the tests of a package once, with all mutants in them, and runs only tests that run the changed
// code. So a mutant takes about as long as one test. Tools that build the tests for each mutant take 100
// times as long.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"
)

// mutatedFolders are the folders whose changes are tried if no packages are named.
var mutatedFolders = []string{"limit", "service", "backend", "descriptors"}

// excludedFolders only help tests.
var excludedFolders = []string{"backend/backendtest"}

// excludedTests would run too long for each mutant. In backend/redis, quick tests notice the same mutants.
var excludedTests = []string{
	"TestLimitHoldsOverRealRedis", "TestLimitHoldsOverASentinelFailover", // service/quota

	// backend/redis
	"TestConnectReachesEachKindOfRedis", "TestSentinelCountsAgainAfterAFailover",
	"TestClusterCountsAgainAfterAFailover", "TestSlotMigrationUnderLoadLosesNoHit",
	"TestSmallPoolIsNoFailureOfRedis", "TestClusterAnswersAsALimiter",
	"TestClusterWithReplicasAnswersAsALimiter", "TestDenialMayEndEarlyOnlyWhileAGroupMayBeRefunded",
	"TestHitsAreDecidedWhileReplicasAreMissing", "TestPlainCommandsAndScriptShareCountersExactly",
	"TestRedisThatStandsStillIsAWarning", "TestDocumentedRightsSufficeInACluster",
	"TestKilledHolderFreesItsSlotWhenItsHoldExpires", "TestClusterKeepsQuotas",
	"TestMarksAreKeptWithoutQuotas", "TestAnswerComesAfterTheReplicaHasTheCharge",
	"TestResetByPrefixSearchesAllMastersOfACluster",
}

func main() {
	since := flag.String("since", "HEAD~1", "a `commit`: without packages, try the files that have changed since")
	bound := flag.Duration("for", 24*time.Hour, "stop after this `time`")
	file := flag.String("survivors", "test/mutants/survivors.txt", "`file` with the mutants that may survive, and why")
	keep := flag.Bool("keep", false, "write new survivors into the file, and remove killed ones")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *bound)
	err := run(ctx, flag.Args(), *since, *file, *keep)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, packages []string, since, file string, keep bool) error {
	reasons, err := readSurvivors(file)
	if err != nil {
		return err
	}
	isChanged := func(string) bool { return true }
	if len(packages) == 0 {
		changed, err := changedFiles(ctx, since)
		if err != nil {
			fmt.Printf("no mutants: this clone has no commit %s to compare with\n", since)
			return nil
		}
		isChanged = func(file string) bool { return slices.Contains(changed, file) }
		packages = foldersOf(changed)
		fmt.Printf("files changed since %s: %d\n", since, len(changed))
	}
	missing := 0
	for _, folder := range packages {
		n, err := try(ctx, folder, isChanged, reasons, keep)
		missing += n
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			fmt.Printf("the time is over in %s; the mutants after it are not tried\n", folder)
			break
		}
		if err != nil {
			return err
		}
	}
	if keep {
		return reasons.write(file)
	}
	if missing > 0 {
		return fmt.Errorf("%s: got no reason for %d mutants; write a test that fails with the mutant, or add the reason", file, missing)
	}
	return nil
}

// changedFiles returns the product files in mutatedFolders that differ from a commit.
func changedFiles(ctx context.Context, commit string) ([]string, error) {
	args := append([]string{"diff", "--name-only", "--diff-filter=d", commit, "--"}, mutatedFolders...)
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	isNoProduct := func(file string) bool {
		return !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || slices.Contains(excludedFolders, path.Dir(file))
	}
	return slices.DeleteFunc(strings.Fields(string(out)), isNoProduct), err
}

func foldersOf(files []string) []string {
	var folders []string
	for _, file := range files {
		folders = append(folders, path.Dir(file))
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// try tries the mutants of a package, prints survivors without a reason, and returns their number.
func try(ctx context.Context, folder string, isChanged func(file string) bool, reasons survivors, keep bool) (missing int, err error) {
	start := time.Now()
	folder = path.Clean(folder)
	s, err := build(ctx, "./"+folder, isChanged)
	if err != nil {
		return 0, err
	}
	defer s.close()
	if err := s.measure(ctx); err != nil {
		return 0, err
	}
	known, counts := map[string]bool{}, map[outcome]int{}
	for _, m := range s.mutants {
		known[m.name()] = true
		outcome := s.try(ctx, m)
		if ctx.Err() != nil {
			break
		}
		counts[outcome]++
		_, hasReason := reasons[m.name()]
		switch {
		case outcome == killed && hasReason && keep:
			delete(reasons, m.name())
		case outcome == killed && hasReason:
			fmt.Printf("%s:%d: a test kills a mutant of the list now: %s\n", m.file, m.line, m.name())
		case outcome == killed || hasReason:
		case keep:
			reasons[m.name()] = openReason
		default:
			missing++
			fmt.Printf("%s:%d: %s: %s\n", m.file, m.line, outcome, m.name())
		}
	}
	for name := range reasons {
		file, _, _ := strings.Cut(name, " ")
		switch {
		case path.Dir(file) != folder || !isChanged(file) || known[name] || ctx.Err() != nil:
		case keep:
			delete(reasons, name)
		default:
			missing++
			fmt.Printf("%s: the list has a mutant that no longer exists: %s\n", file, name)
		}
	}
	tried := counts[killed] + counts[survived] + counts[uncovered]
	fmt.Printf("%s: %d of %d mutants killed (%.1f %%), %d survived, %d not covered, %d not tried; %v\n", folder, counts[killed], tried,
		100*float64(counts[killed])/max(float64(tried), 1), counts[survived], counts[uncovered], len(s.mutants)-tried, time.Since(start).Round(time.Second))
	return missing, nil
}
