package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPagesInDocsComeFromTheCode(t *testing.T) {
	for name, write := range generatedPages() {
		want, err := os.ReadFile("../../docs/" + name + ".md")
		require.NoError(t, err)
		var got bytes.Buffer
		require.NoError(t, write(&got))
		assert.True(t, bytes.Equal(want, got.Bytes()), "docs/%s.md is old; make docs writes it", name)
	}
}

func TestManualPageHasEachCommand(t *testing.T) {
	t.Parallel()
	out, _, code := rls(t, "docs", "man")
	assert.Zero(t, code)
	assert.Contains(t, out, "\n.SH rls limits show\n.nf\nShows each rule in force")
	assert.Contains(t, out, `\-\-admin string`)
	assert.Contains(t, out, `Write \e, for a comma`)
	assert.NotContains(t, out, "rls limits list")
}

func TestDocsCommandNamesThePages(t *testing.T) {
	t.Parallel()
	_, errOut, code := rls(t, "docs", "setings")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, `got "setings", want cli, limits-fields, man or settings; did you mean settings?`)
}
