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

func TestDocsCommandNamesThePages(t *testing.T) {
	t.Parallel()
	_, errOut, code := rls(t, "docs", "setings")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, `got "setings", want cli, limits-fields or settings; did you mean settings?`)
}
