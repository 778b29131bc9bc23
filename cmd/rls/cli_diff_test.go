package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/whatif/limitsdiff"
)

func TestDiffHasAnExitCodeForEachKind(t *testing.T) {
	t.Parallel()
	oldFile := writeFile(t, "old.yaml", threePerYear)
	for _, test := range []struct {
		name, from, to string
		code           int
		want           string
	}{
		{"no change", "", "", 0, "no change: the same requests pass\n"},
		{"mistake", "domain: shop", "domian: shop", 1, "new limits files have mistakes:\n"},
		{"name", "yearly", "annual", 2, "- the name of the limit becomes annual\n"},
		{"looser", "requests_per_unit: 3", "requests_per_unit: 4", 3, "- 3 per year becomes 4 per year\n    counters: kept\n1 change: 0 tighter, 1 looser,"},
		{"tighter", "requests_per_unit: 3", "requests_per_unit: 2", 4, "tighter  shop > tenant: changed\n"},
		{"mixed", "unit: year, requests_per_unit: 3", "unit: day, requests_per_unit: 1", 4, "mixed    shop > tenant: changed\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			newFile := writeFile(t, "new.yaml", strings.Replace(threePerYear, test.from, test.to, 1))
			out, errOut, code := rls(t, "diff", oldFile, newFile)
			assert.Equal(t, test.code, code)
			assert.Contains(t, out+errOut, test.want)
		})
	}
}

func TestDiffReadsStandardInput(t *testing.T) {
	t.Parallel()
	cmd := command(t, nil, "diff", "-", writeFile(t, "new.yaml", threePerYear))
	cmd.Stdin = strings.NewReader(strings.Replace(threePerYear, "3,", "2,", 1))
	out, _ := cmd.CombinedOutput()
	assert.Equal(t, 3, cmd.ProcessState.ExitCode())
	assert.Contains(t, string(out), "before: 2 per year (named yearly) (stdin:4)\n")
	_, errOut, code := rls(t, "diff", "-", "-")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "the path - is given twice; want it once")
}

func TestDiffSpeaksJSON(t *testing.T) {
	t.Parallel()
	oldFile, newFile := writeFile(t, "old.yaml", threePerYear), writeFile(t, "new.yaml", strings.Replace(threePerYear, "3,", "2,", 1))
	out, _, code := rls(t, "diff", oldFile, newFile, "--json")
	assert.Equal(t, 4, code)
	var r limitsdiff.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Len(t, r.Changes, 1)
	assert.Equal(t, limitsdiff.Rule{Path: "shop > tenant", Place: newFile + ":4", Limits: "2 per year (named yearly)"}, *r.Changes[0].New)
	assert.Equal(t, limitsdiff.Tighter, r.Kind)
}

func TestDiffReadsListFiles(t *testing.T) {
	t.Parallel()
	list := writeFile(t, "deny.txt", "192.0.2.1\n")
	limits := filepath.Join(filepath.Dir(list), "limits.yaml")
	require.NoError(t, os.WriteFile(limits, []byte("domain: shop\ndescriptors: [{key: ip, in: {file: deny.txt}, rate_limit: {unit: day, requests_per_unit: 1}}]\n"), 0o600))
	_, errOut, code := rls(t, "diff", limits, limits)
	assert.Zero(t, code, errOut)
}
