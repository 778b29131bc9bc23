package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
)

// bom is a list of components in the format of CycloneDX 1.5.
type bom struct {
	Format      string `json:"bomFormat"`
	SpecVersion string `json:"specVersion"`
	Version     int    `json:"version"`
	Metadata    struct {
		Component component `json:"component"`
	} `json:"metadata"`
	Components []component `json:"components"`
}

// component is a program or a module.
type component struct {
	Type     string             `json:"type"`
	Ref      string             `json:"bom-ref"`
	Name     string             `json:"name"`
	Version  string             `json:"version"`
	PURL     string             `json:"purl"`
	Licenses []componentLicense `json:"licenses,omitempty"`
}

type componentLicense struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

func newComponent(kind, name, version, license string) component {
	purl := fmt.Sprintf("pkg:golang/%s@%s", name, version)
	c := component{Type: kind, Ref: purl, Name: name, Version: version, PURL: purl, Licenses: make([]componentLicense, 1)}
	c.Licenses[0].License.ID = license
	return c
}

// printSBOM prints the modules that the Go command has recorded in a program, with their licenses.
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
	list := bom{Format: "CycloneDX", SpecVersion: "1.5", Version: 1}
	list.Metadata.Component = newComponent("application", info.Main.Path, version, "Apache-2.0")
	list.Components = append(list.Components, newComponent("library", "std", info.GoVersion, licenses["std"]))
	for _, m := range info.Deps {
		if licenses[m.Path] == "" {
			return fmt.Errorf("%s: the program contains it, but go list does not know it", m.Path)
		}
		list.Components = append(list.Components, newComponent("library", m.Path, m.Version, licenses[m.Path]))
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(list)
}
