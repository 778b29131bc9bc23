package limitsdiff

import (
	"encoding/json"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/testkit/limitsgen"
)

// compareFiles compares limits files in both directions, and each file with itself. It writes the
// reports in all forms.
func compareFiles(t require.TestingT, texts ...string) {
	var configs []*descriptors.Config
	for _, text := range texts {
		set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(text)}}, limitsfile.Options{})
		if err != nil {
			return
		}
		configs = append(configs, descriptors.Compile(set))
	}
	for i, oldConfig := range configs {
		for j, newConfig := range configs {
			r := Compare(oldConfig, newConfig)
			if i == j {
				assert.Empty(t, r.Changes)
			}
			require.NoError(t, r.WriteText(io.Discard))
			_, err := json.Marshal(r)
			require.NoError(t, err)
		}
	}
}

// FuzzCompare compares limits files of the fuzzer.
func FuzzCompare(f *testing.F) {
	limits, err := os.ReadFile("../../../examples/limits.yaml")
	require.NoError(f, err)
	f.Add(string(limits), shopFile(descriptorWith("", ""), `{key: a, value: "x*", descriptors: [{key: b, cidr: [10.0.0.0/8], rate_limit: {unlimited: true}}]}`))
	f.Add("domain: d\ndefaults: {enabled: false}\ndescriptors: [{key: a, cel: 'value == \"x\"', rate_limit: {unit: day, requests_per_unit: 1}}]", "domain: d\ndescriptors: [{key: a, not: {regex: x+}, enforce: 5}]")
	f.Add("domain: d\ndescriptors: [{key: a, rate_limit: {unit: millisecond, unit_multiplier: 10, requests_per_unit: 4294967295, algorithm: token_bucket}}]", "domain: d")
	f.Fuzz(func(t *testing.T, oldText, newText string) { compareFiles(t, oldText, newText) })
}

// FuzzDrawnCompare compares drawn limits files.
func FuzzDrawnCompare(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { compareFiles(t, limitsgen.File(t), limitsgen.File(t)) }))
}

func TestRandomFileDoesNotDifferFromItself(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { compareFiles(t, limitsgen.File(t), limitsgen.File(t)) })
}
