package curves

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSpreadHasMedianAndExtremes(t *testing.T) {
	assert.Equal(t, Spread{Median: 3, Low: 1, High: 9}, SpreadOf([]float64{9, 1, 3, 2, 5}))
}

func TestFileKeepsRun(t *testing.T) {
	l := Load{Rate: 1000, Descriptors: 4, Keys: 1}
	run := &Run{Measured: time.Unix(1_763_784_000, 0).UTC(), Cores: 2, Cells: []Cell{
		{Server: Local, Load: l, Figures: map[Figure]Spread{PerSecond: {Median: 900, Low: 890, High: 950}}},
	}}
	path := filepath.Join(t.TempDir(), "curves.json")
	require.NoError(t, run.Write(path))
	got, err := Read(path)
	require.NoError(t, err)
	assert.Equal(t, run, got)
	cell, ok := got.Cell(Local, l)
	assert.True(t, ok)
	assert.True(t, cell.Saturated())
	_, ok = got.Cell(Redis, l)
	assert.False(t, ok)
}

func TestSectionNeedsMarks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(path, []byte("a\n<!-- x -->\nold\n<!-- /x -->\nb\n"), 0o644))
	require.NoError(t, ReplaceSection(path, "x", "new\n"))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n", string(text))
	assert.ErrorContains(t, ReplaceSection(path, "y", ""), "want both")
}
