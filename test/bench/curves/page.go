package curves

import (
	"fmt"
	"os"
	"strings"
)

// ReplaceSection replaces the text between the marks <!-- name --> and <!-- /name --> in the
// file at path.
func ReplaceSection(path, name, text string) error {
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, found := strings.Cut(string(page), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s: got no marks %s and %s, want both", path, strings.TrimSpace(begin), end)
	}
	return os.WriteFile(path, []byte(head+begin+text+end+tail), 0o644)
}
