// Command licenses prints the licenses of the modules in the program rls, with their texts. It
// fails if a module has no license, an unknown one or a forbidden one.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if err := printLicenses(os.Stdout, "./cmd/rls"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// printLicenses prints a table of the modules of a package, and then each text once.
func printLicenses(w io.Writer, pkg string) error {
	modules, err := listModules(pkg)
	if err != nil {
		return err
	}
	var table, texts strings.Builder
	var problems []error
	users := map[string][]string{} // the modules of a text
	var order []string             // of the texts
	for _, m := range modules {
		name, text, err := m.notices()
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %s: %w", m.Path, m.Version, err))
			continue
		}
		fmt.Fprintf(&table, "%-12s  %s %s\n", name, m.Path, m.Version)
		if users[text] == nil {
			order = append(order, text)
		}
		users[text] = append(users[text], m.Path)
	}
	for _, text := range order {
		fmt.Fprintf(&texts, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), text)
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	_, err = fmt.Fprintf(w, "The program rls contains these modules:\n\n%s%s", table.String(), texts.String())
	return err
}
