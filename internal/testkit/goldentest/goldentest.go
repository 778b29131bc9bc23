// Package goldentest compares committed files with the code that generates them.
package goldentest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the files that the code generates")

// RequireText fails the test if the file does not have this text. With the flag -update, it writes the file first.
func RequireText(tb testing.TB, file, text string) {
	tb.Helper()
	if *update {
		require.NoError(tb, os.WriteFile(file, []byte(text), 0o644))
	}
	committedText, err := os.ReadFile(file)
	require.NoError(tb, err)
	require.Equal(tb, text, string(committedText), "%s is old; make docs writes it", file)
}

// RequireJSON fails the test if the file does not have value as indented JSON. With the flag -update, it writes the file
// first.
func RequireJSON(tb testing.TB, file string, value any) {
	tb.Helper()
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	require.NoError(tb, encoder.Encode(value))
	RequireText(tb, file, text.String())
}
