package simulate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mutant is a defect: a change of one file. Two mutants with one name are in the program together.
// The simulation must find each name.
type mutant struct {
	name     string
	file     string
	old, new string // old occurs once in the file
	runs     []run  // that find the defect
	problem  string // a part of one of the problems that each run must report
}

// run is a seed with the name of a schedule, or with the schedule that the seed draws.
type run struct {
	schedule string
	seed     uint64
}

// mutants are the defects that the simulation is known to find. docs/simulation.md lists them. In
// new code, isMutant reports whether the run is one of this mutant, and choose returns its second
// argument if the first one is true, and its third argument otherwise.
var mutants = []mutant{
	{
		name:    "full-queue-is-a-failure",
		file:    "backend/fallback/serve.go",
		old:     "case errors.Is(r.Err, backend.ErrOverloaded), errors.Is(r.Err, backend.ErrNotSent):",
		new:     "case !isMutant() && (errors.Is(r.Err, backend.ErrOverloaded) || errors.Is(r.Err, backend.ErrNotSent)):",
		runs:    []run{{"full-queue-far-away", 1}},
		problem: "breaker opened",
	},
	{
		name:    "full-queue-is-not-reported",
		file:    "backend/fallback/outage.go",
		old:     "\t\tif r.Err != nil {\n\t\t\tcontinue",
		new:     "\t\tif r.Err != nil || isMutant() && r.Reason == backend.ReasonOverload {\n\t\t\tcontinue",
		runs:    []run{{"full-queue", 1}},
		problem: "rls_max_excess_hits",
	},
	{
		name:    "full-queue-is-not-replayed",
		file:    "backend/fallback/outage.go",
		old:     "case errors.Is(f.err, backend.ErrNotSent):",
		new:     "case !isMutant() && errors.Is(f.err, backend.ErrNotSent):",
		runs:    []run{{"full-queue", 1}},
		problem: "and not charged",
	},
	{
		name:    "late-answers-are-not-settled",
		file:    "backend/fallback/late.go",
		old:     "l.settle(h, answer)",
		new:     "if !isMutant() { l.settle(h, answer) }",
		runs:    []run{{"late-answers", 1}},
		problem: "admitted hits: got",
	},
	{
		name: "late-answers-are-not-settled", // the old code did not know the last count either
		file: "backend/fallback/lastcount.go",
		old:  "if l.o.LastCount == nil {",
		new:  "if isMutant() || l.o.LastCount == nil {",
	},
}

// root is the folder of the repository.
const root = "../.."

func TestMutantsChangeCodeThatExists(t *testing.T) {
	for _, m := range mutants {
		code, err := os.ReadFile(filepath.Join(root, m.file))
		require.NoError(t, err)
		assert.Equal(t, 1, strings.Count(string(code), m.old), "%s: %s", m.name, m.file)
	}
}
