package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
)

// printSBOM prints the modules that the Go command has recorded in a program, with their licenses, in the
// format CycloneDX 1.5.
func printSBOM(w io.Writer, program, version string, modules []module) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	licenses := map[string]string{}
	for _, m := range modules {
		if licenses[m.Path], _, err = m.notices(); err != nil {
			return fmt.Errorf("%s %s: %w", m.Path, m.Version, err)
		}
	}
	components := []any{component("library", "std", info.GoVersion, licenses["std"])}
	for _, m := range info.Deps {
		if licenses[m.Path] == "" {
			return fmt.Errorf("%s: the program contains it, but go list does not know it", m.Path)
		}
		components = append(components, component("library", m.Path, m.Version, licenses[m.Path]))
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components,
		"metadata": map[string]any{"component": component("application", info.Main.Path, version, "Apache-2.0")},
	})
}

// component describes a program or a module.
func component(kind, name, version, license string) map[string]any {
	url := fmt.Sprintf("pkg:golang/%s@%s", name, version)
	return map[string]any{
		"type": kind, "bom-ref": url, "name": name, "version": version, "purl": url,
		"licenses": []any{map[string]any{"license": map[string]string{"id": license}}},
	}
}
