package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPainterColoursWordsThatSayHowWellThingsAre(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ok       redis: ok":          green + "ok" + noColour + "       redis: ok",
		"ok\nproblem  limits":         green + "ok" + noColour + "\n" + red + "problem" + noColour + "  limits",
		"   1  OVER_LIMIT  tenant=OK": "   1  " + red + "OVER_LIMIT" + noColour + "  tenant=" + green + "OK" + noColour,
		"warning: a.yaml":             yellow + "warning" + noColour + ": a.yaml",
		"rls: no such host":           red + "rls:" + noColour + " no such host",
		"okay, problems":              "okay, problems",
	} {
		var out bytes.Buffer
		n, err := colourWriter{&out}.Write([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, len(text), n)
		assert.Equal(t, want, out.String())
	}
	var file bytes.Buffer
	assert.Equal(t, &file, newColourWriter(&file), "only a terminal gets colours")
}
