// Package reports writes the reports of explain, limitsdiff, limitsplan and limitstest.
package reports

import (
	"bytes"
	"encoding/json"
	"io"
	"text/template"
)

// JSON writes v as JSON for people and programs.
func JSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // paths of rules contain >
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// Text writes the text that t makes of data. It drops empty lines, because a line of a template that has only a condition
// leaves an empty line. A line with a form feed becomes an empty line.
func Text(w io.Writer, t *template.Template, data any) error {
	var text, lines bytes.Buffer
	if err := t.Execute(&text, data); err != nil {
		return err
	}
	for line := range bytes.Lines(text.Bytes()) {
		if len(bytes.TrimSpace(line)) > 0 || bytes.Contains(line, []byte("\f")) {
			lines.Write(bytes.TrimPrefix(line, []byte("\f")))
		}
	}
	_, err := w.Write(lines.Bytes())
	return err
}
