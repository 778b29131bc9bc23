package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAllDependenciesHaveAllowedLicenses(t *testing.T) {
	var out bytes.Buffer
	modules, err := listModules("../../../cmd/rls")
	require.NoError(t, err)
	require.NoError(t, printLicenses(&out, modules))
	assert.Contains(t, out.String(), "Apache-2.0    google.golang.org/grpc v")
	assert.Contains(t, out.String(), "BSD-3-Clause  std go1.")
	assert.Contains(t, out.String(), "Copyright 2009 The Go Authors")
}

func TestForbiddenAndUnknownLicensesFail(t *testing.T) {
	for name, test := range map[string]struct{ file, text, want string }{
		"copyleft":  {"LICENSE", "GNU AFFERO GENERAL PUBLIC LICENSE\nVersion 3", "LICENSE: the text names a forbidden license: GNU AFFERO GENERAL PUBLIC LICENSE"},
		"weak":      {"COPYING", "Mozilla Public License Version 2.0", "COPYING: the text names a forbidden license: Mozilla Public License"},
		"own words": {"LICENSE.md", "Do what you like.", "LICENSE.md: unknown license; if it is allowed, add it to allowedLicenses"},
		"no file":   {"README.md", "Apache License Version 2.0", "no file with a license"},
		"notice":    {"NOTICE", "Copyright 2020 Somebody", "no file with a license"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, test.file), []byte(test.text), 0o600))
			_, _, err := module{Dir: dir}.notices()
			require.EqualError(t, err, test.want)
		})
	}
}

func TestNoticeGoesWithTheLicense(t *testing.T) {
	dir := t.TempDir()
	license := "Permission to use, copy, modify, and/or distribute this software for any\npurpose with or without fee is hereby granted"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "LICENSE"), []byte(license), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "NOTICE"), []byte("Contains parts of a program.\n"), 0o600))
	name, text, err := module{Dir: dir}.notices()
	require.NoError(t, err)
	assert.Equal(t, "ISC", name)
	assert.Equal(t, license+"\n\nContains parts of a program.", text)
}
