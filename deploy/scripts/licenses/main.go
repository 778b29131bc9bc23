// Command licenses prints the licenses of the modules in the program rls, with their texts. It
// fails if a module has no license, an unknown one or a forbidden one. With -sbom it prints the
// modules of a built program as an SBOM.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// programPackage is the package of the program rls.
const programPackage = "./cmd/rls"

func main() {
	program := flag.String("sbom", "", "built program, of which to print an SBOM (CycloneDX)")
	version := flag.String("version", "", "version of this program")
	flag.Parse()
	modules, err := listModules(programPackage)
	switch {
	case err != nil:
	case *program != "":
		err = printSBOM(os.Stdout, *program, *version, modules)
	default:
		err = printLicenses(os.Stdout, modules)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// printLicenses prints a table of the modules, and then each text once.
func printLicenses(w io.Writer, modules []module) error {
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
	_, err := fmt.Fprintf(w, "The program rls contains these modules:\n\n%s%s", table.String(), texts.String())
	return err
}
