package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// license is a license that a dependency may have. A text has the license if it contains all
// phrases.
type license struct {
	name    string // in SPDX
	phrases []string
}

// allowedLicenses are the licenses that allow the Apache license for the whole program. The first
// match counts.
var allowedLicenses = []license{
	{"Apache-2.0", []string{"Apache License Version 2.0", "Grant of Copyright License"}},
	{"MIT", []string{"Permission is hereby granted, free of charge", "The above copyright notice and this permission notice shall be included"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "used to endorse or promote products derived from this software"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms", "Redistributions in binary form must reproduce"}},
	{"ISC", []string{"Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted"}},
}

// copyleft matches names of licenses that are not allowed, even beside an allowed license.
var copyleft = regexp.MustCompile(`(?i)GNU (Affero |Lesser |Library )?General Public License|Mozilla Public License|Business Source License|Server Side Public License|Commons Clause`)

var spaces = regexp.MustCompile(`\s+`)

// licenseOf returns the name of the license of a text.
func licenseOf(text string) (string, error) {
	text = spaces.ReplaceAllString(text, " ")
	if name := copyleft.FindString(text); name != "" {
		return "", fmt.Errorf("the text names a forbidden license: %s", name)
	}
	for _, l := range allowedLicenses {
		if !slices.ContainsFunc(l.phrases, func(phrase string) bool { return !strings.Contains(text, phrase) }) {
			return l.name, nil
		}
	}
	return "", errors.New("unknown license; if it is allowed, add it to allowedLicenses")
}

// module is a Go module whose code is in the program.
type module struct {
	Path, Version, Dir string
	Replace            *module
	Main               bool
}

// systems are the operating systems of releases. Each can have further dependencies.
var systems = []string{"linux", "darwin", "windows"}

// listModules returns the modules of a package in the order of their paths, with the standard
// library as the module std. The main module is not one of them.
func listModules(pkg string) ([]module, error) {
	found := map[string]module{}
	for _, system := range systems {
		list := exec.Command("go", "list", "-deps", "-json=Module", pkg)
		list.Env = append(list.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		list.Stderr = os.Stderr
		out, err := list.Output()
		for decoder := json.NewDecoder(bytes.NewReader(out)); err == nil && decoder.More(); {
			var p struct{ Module *module }
			if err = decoder.Decode(&p); p.Module != nil && !p.Module.Main {
				found[p.Module.Path] = *p.Module
			}
		}
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
	}
	goEnv, err := exec.Command("go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	words := strings.Fields(string(goEnv))
	found["std"] = module{Path: "std", Version: words[1], Dir: words[0]}
	modules := slices.SortedFunc(maps.Values(found), func(a, b module) int { return cmp.Compare(a.Path, b.Path) })
	for i, m := range modules {
		if m.Replace != nil {
			modules[i].Dir = m.Replace.Dir
		}
	}
	return modules, nil
}

// licenseFile matches names of files with a license or a notice.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)(\.(txt|md))?$`)

// notices returns the license of a module, and the texts that must go with the program.
func (m module) notices() (name, text string, err error) {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return "", "", err
	}
	var texts []string
	for _, entry := range entries {
		if !licenseFile.MatchString(entry.Name()) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(m.Dir, entry.Name()))
		if err != nil {
			return "", "", err
		}
		texts = append(texts, strings.TrimSpace(string(content)))
		if strings.HasPrefix(strings.ToLower(entry.Name()), "notice") {
			continue
		}
		if name, err = licenseOf(string(content)); err != nil {
			return "", "", fmt.Errorf("%s: %w", entry.Name(), err)
		}
	}
	if name == "" {
		return "", "", errors.New("no file with a license")
	}
	return name, strings.Join(texts, "\n\n"), nil
}
