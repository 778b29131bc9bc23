//go:build attacks

package attacks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
)

const (
	// maxFileMemory bounds the memory in which each limits file and each xDS response is read.
	maxFileMemory = 250 << 20

	// These multiples of libraryTime bound the CPU time.
	maxFileTimesLibrary     = 2.5
	maxResponseTimesLibrary = 2.0
)

const fileBytes = 15_900 << 10

// fill returns head, and as many items of the pattern, numbered from 0, as fit into fileBytes.
func fill(head, pattern string) string { return fillTo(fileBytes, head, pattern) }

func fillTo(size int, head, pattern string) string {
	var b strings.Builder
	b.WriteString(head)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, pattern, i)
	}
	return b.String()
}

// rulesFile returns a limits file of this size, as people write it.
func rulesFile(size int) string {
	return fillTo(size, "domain: d\ndescriptors:\n", "  - key: path\n    value: /api/v1/items/%06d\n    rate_limit:\n      unit: minute\n      requests_per_unit: 10\n")
}

// descriptorBomb has 10^8 descriptors by aliases of aliases.
func descriptorBomb() string {
	b := "domain: d\ndescriptors:\n- key: k\n  descriptors: &a0 [{key: x0}]\n"
	for i := range 8 {
		var items []string
		for j := range 10 {
			items = append(items, fmt.Sprintf("{key: x%d, descriptors: *a%d}", j, i))
		}
		b += fmt.Sprintf("- key: k%d\n  descriptors: &a%d [%s]\n", i, i+1, strings.Join(items, ", "))
	}
	return b
}

// metadataBomb has 10^9 values by aliases of aliases.
func metadataBomb() string {
	b := "domain: d\ndescriptors:\n- key: k\n  metadata:\n    a0: &a0 x\n"
	for i := range 9 {
		b += fmt.Sprintf("    a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	return b
}

// aliasesOfRules has n aliases of a list of n rules.
func aliasesOfRules(n int) string {
	var items []string
	for i := range n {
		items = append(items, fmt.Sprintf("{key: x%d, rate_limit: {unit: minute, requests_per_unit: 1}}", i))
	}
	b := "domain: d\ndescriptors:\n- key: k\n  descriptors: &a [" + strings.Join(items, ", ") + "]\n"
	for i := range n {
		b += fmt.Sprintf("- key: k%d\n  descriptors: *a\n", i)
	}
	return b
}

// libraryTime returns the CPU time in which the YAML library parses a file of fileBytes with rules, in ten parts, and does
// nothing else. Like rls check, it uses all cores. It is the measure of all other times, because the speed of a shared
// machine changes within minutes.
func libraryTime(t *testing.T) time.Duration {
	part := []byte(rulesFile(fileBytes / 10))
	cpuTimeBefore := cpuTimeOfTest(t)
	var parsers errgroup.Group
	parsers.SetLimit(runtime.GOMAXPROCS(0))
	for range 10 {
		parsers.Go(func() error { return yaml.Unmarshal(part, &yaml.Node{}) })
	}
	require.NoError(t, parsers.Wait())
	return cpuTimeOfTest(t) - cpuTimeBefore
}

func cpuTimeOfTest(t *testing.T) time.Duration {
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// assertBoundedTime checks the CPU time of a limits file or a response.
func assertBoundedTime(t *testing.T, cpuTime time.Duration, maxTimesLibrary float64) {
	library := libraryTime(t)
	if cpuTime > time.Second { // a second measurement, because the first one can fall into a slower or a quicker moment
		library = (library + libraryTime(t)) / 2
	}
	t.Logf("CPU time: %.1f s, %.2f times the %.1f s of the YAML library", cpuTime.Seconds(), cpuTime.Seconds()/library.Seconds(), library.Seconds())
	assert.Less(t, cpuTime.Seconds(), maxTimesLibrary*library.Seconds())
}

// resetPeak resets the peak of this process, because a new process starts with the peak of its parent.
func resetPeak(t *testing.T) {
	debug.FreeOSMemory()
	require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
}

func TestHostileFilesTakeBoundedMemory(t *testing.T) {
	program := build(t)
	for _, file := range []hostileFile{
		{"aliases of aliases of descriptors", descriptorBomb, "aliases repeat more than 1000000 keys and values"},
		{"aliases of aliases in metadata", metadataBomb, "aliases repeat more than 1000000 keys and values"},
		{"1,400 aliases of a list of 1,400 rules", func() string { return aliasesOfRules(1400) }, "aliases repeat more than 1000000 keys and values"},
		{"330 aliases of a list of 330 rules", func() string { return aliasesOfRules(330) }, ""},
		{"15.9 MB of rules", func() string { return rulesFile(fileBytes) }, ""},
		{"15.9 MB of rules in one line", func() string {
			return fill("domain: d\ndescriptors: [", "{key: path%d, rate_limit: {unit: minute, requests_per_unit: 10}}, ") + "]"
		}, "more than 500000 keys and values to parse at once"},
		{"15.9 MB of short rules", func() string {
			return fill("domain: d\ndescriptors:\n", "- {key: k%d, rate_limit: {unit: day, requests_per_unit: 1}}\n")
		}, "more than 320000 descriptors and limits"},
		{"15.9 MB of rules, each below the rule before it, up to 512 deep", func() string {
			const rule = "{key: k, rate_limit: {unit: day, requests_per_unit: 1}, descriptors: ["
			return fill("domain: d\ndescriptors:\n", "- {key: k%d, descriptors: ["+strings.Repeat(rule, 510)+"{key: k}"+strings.Repeat("]}", 511)+"\n")
		}, "more than 320000 descriptors and limits"},
		{"15.9 MB of bare keys", func() string { return fill("domain: d\n", "k%d:\n") }, "more than 500000 keys and values to parse at once"},
		{"15.9 MB of metadata", func() string { return fill("domain: d\ndescriptors:\n- key: k\n  metadata: {", "k%d, ") + "}" }, "more than 500000 keys and values to parse at once"},
	} {
		t.Run(file.name, func(t *testing.T) { file.check(t, program) })
	}
}

// hostileFile is a row of the table of limits files.
type hostileFile struct {
	name    string
	content func() string
	want    string // a part of the reason if the file is rejected; empty if the limits come into force
}

// check measures rls check with the file.
func (f *hostileFile) check(t *testing.T, program string) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(path, []byte(f.content()), 0o600))
	resetPeak(t)
	cmd := exec.CommandContext(t.Context(), program, "check", path)
	out, err := cmd.CombinedOutput()
	cpuTime := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	result := "in force"
	if f.want != "" {
		require.Error(t, err)
		result = "rejected: " + f.want
		assert.Contains(t, string(out), f.want)
	} else {
		require.NoError(t, err, "%.1000s", out)
	}
	fileTable.rows = append(fileTable.rows, fmt.Sprintf("| %s | %d | %.1f | %s |", f.name, peak>>20, cpuTime.Seconds(), result))
	assert.LessOrEqual(t, peak, int64(maxFileMemory))
	assertBoundedTime(t, cpuTime, maxFileTimesLibrary)
}
