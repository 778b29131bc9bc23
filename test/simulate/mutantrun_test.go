//go:build mutants

package simulate

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var search = flag.String("search", "", "seeds, such as 1-20: also list which of their drawn schedules find each mutant")

// TestSimulationFindsEachMutant builds all mutants into one program, because the compilation takes
// half a minute. A variable of the environment selects the mutant of a run.
func TestSimulationFindsEachMutant(t *testing.T) {
	program, err := Compile(t.Context(), "-overlay", writeMutants(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = program.Close(context.Background()) })
	for _, mutant := range mutants {
		t.Run(mutant.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range mutant.runs {
				problems, isFound := mutant.find(t, program, r)
				assert.True(t, isFound, "%+v: got %q, want a problem with %q", r, problems, mutant.problem)
				t.Logf("%+v: %s", r, strings.Join(problems, "\n"))
			}
			if *search != "" {
				t.Logf("seeds %s: found by %v", *search, mutant.seedsThatFind(t, program))
			}
		})
	}
}

// seedsThatFind returns the seeds of the option -search whose drawn schedule shows any problem.
func (m *mutant) seedsThatFind(t *testing.T, p *Program) (seedsWithDefect []uint64) {
	firstSeed, lastSeed := parseSeeds(t, *search)
	for seed := firstSeed; seed <= lastSeed; seed++ {
		if problems, _ := m.find(t, p, run{seed: seed}); len(problems) > 0 {
			seedsWithDefect = append(seedsWithDefect, seed)
		}
	}
	return seedsWithDefect
}

// find returns the first problems of a run, and whether any problem shows the mutant.
func (m *mutant) find(t *testing.T, p *Program, r run) (problems []string, isFound bool) {
	result, err := p.RunMutant(t.Context(), r.seed, r.schedule, m.name)
	require.NoError(t, err)
	if *tracing != "" {
		require.NoError(t, os.WriteFile(*tracing, result.Trace, 0o600))
	}
	isFound = slices.ContainsFunc(result.Problems, func(problem string) bool { return strings.Contains(problem, m.problem) })
	return firstOf(result.Problems, 3), isFound
}

// writeMutants writes the changed files to a folder of the test. It returns the name of a file for
// the option -overlay of go build.
func writeMutants(t *testing.T) string {
	folder := t.TempDir()
	replacements := map[string]string{} // path to the file in its place
	write := func(path, code string) {
		path, err := filepath.Abs(filepath.Join(root, path))
		require.NoError(t, err)
		if replacements[path] == "" {
			replacements[path] = filepath.Join(folder, fmt.Sprintf("%d.go", len(replacements)))
		}
		require.NoError(t, os.WriteFile(replacements[path], []byte(code), 0o600))
	}
	changedCode := map[string]string{} // code by file
	for _, mutant := range mutants {
		if changedCode[mutant.file] == "" {
			code, err := os.ReadFile(filepath.Join(root, mutant.file))
			require.NoError(t, err)
			changedCode[mutant.file] = string(code)
		}
		newCode := strings.ReplaceAll(mutant.new, "isMutant()", fmt.Sprintf("isMutant(%q)", mutant.name))
		changedCode[mutant.file] = strings.Replace(changedCode[mutant.file], mutant.old, newCode, 1)
	}
	for file, code := range changedCode {
		write(file, code)
		write(filepath.Join(filepath.Dir(file), "mutant.go"), fmt.Sprintf(mutantCode, filepath.Base(filepath.Dir(file))))
	}
	list, err := json.Marshal(map[string]any{"Replace": replacements})
	require.NoError(t, err)
	overlay := filepath.Join(folder, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, list, 0o600))
	return overlay
}

// mutantCode is a file that each package with a mutant gets.
const mutantCode = `package %s

import (
	"os"
	"strings"
)

var mutant = os.Getenv("MUTANT")

func isMutant(name string) bool { return mutant == name }

func replaceText(text, from, to string) string { return strings.Replace(text, from, to, 1) }

func choose[T any](isFirst bool, first, second T) T {
	if isFirst {
		return first
	}
	return second
}
`
