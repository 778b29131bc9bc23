package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const code = `package calc

func Max(a, b int) int {
	if a > b {
		return a
	}
	return b
}

func Next(a int) int { a++; return -a }

func unused(a int) bool { return a == 1 && a+1 == 2 }
`

const tests = `package calc

import "testing"

func TestMax(t *testing.T) {
	if Max(1, 2) != 2 || Max(2, 1) != 2 || Next(1) != -2 {
		t.Fail()
	}
}
`

func TestSurvivorsNeedAReason(t *testing.T) {
	t.Chdir(t.TempDir())
	for file, text := range map[string]string{"go.mod": "module calc\n\ngo 1.26\n", "calc/calc.go": code, "calc/calc_test.go": tests, "survivors.txt": ""} {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	runMutants := func(keep bool) error { return run(t.Context(), []string{"calc"}, "", "survivors.txt", keep) }
	assert.EqualError(t, runMutants(false), "survivors.txt: got no reason for 5 mutants; write a test that fails with the mutant, or add the reason")

	require.NoError(t, os.WriteFile("survivors.txt", []byte("# same: both are the larger number\ncalc/calc.go Max: a > b → a >= b\n\n# old\ncalc/calc.go Max: a > b → a <= b\ncalc/calc.go gone: a\n"), 0o600))
	require.NoError(t, runMutants(true))
	text, err := os.ReadFile("survivors.txt")
	require.NoError(t, err)
	assert.Equal(t, `# open: a test is missing
calc/calc.go unused: a == 1 && a+1 == 2 → a == 1 || a+1 == 2
calc/calc.go unused: a == 1 → a != 1
calc/calc.go unused: a+1 == 2 → a+1 != 2
calc/calc.go unused: a+1 → a - 1

# same: both are the larger number
calc/calc.go Max: a > b → a >= b
`, string(text))
	assert.NoError(t, runMutants(false))
}

func TestChangesNeedACommitToCompareWith(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("survivors.txt", nil, 0o600))
	assert.NoError(t, run(t.Context(), nil, "HEAD~1", "survivors.txt", false), "a clone without history has no changes")
}

func TestExcludedTestsExist(t *testing.T) {
	for _, name := range excludedTests {
		out, err := exec.CommandContext(t.Context(), "git", "grep", "-l", "^func "+name+"(", "--", "../../*_test.go").CombinedOutput()
		assert.NoError(t, err, "%s: got no test with this name: %s", name, out)
	}
}
