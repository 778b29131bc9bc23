// Package rls_test holds the rules about who may import whom (docs/design.md).
package rls_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/seed-81f232ab/rls/"

// mayImport lists, for each package of ours, the packages of ours it may import.
var mayImport = map[string][]string{
	"limit":                {},
	"descriptors":          {"limit"},
	"reload":               {"descriptors", "source"},
	"source/file":          {"descriptors"},
	"source/xds":           {"descriptors", "internal/clienttls", "internal/wait"},
	"source/overrides":     {"internal/wait"},
	"backend":              {"limit"},
	"backend/local":        {"backend", "internal/fingerprint", "limit"},
	"backend/redis":        {"backend", "internal/clienttls", "internal/msgpack", "internal/wait", "limit", "lua"},
	"backend/scope":        {"backend", "limit"},
	"backend/fallback":     {"backend", "internal/wait", "limit"},
	"backend/denycache":    {"backend", "internal/fingerprint", "limit"},
	"backend/guard":        {"backend", "limit"},
	"backend/backendtest":  {"backend", "internal/wait", "limit"},
	"lua":                  {},
	"service":              {"backend", "descriptors", "limit"},
	"admin":                {"backend", "descriptors", "limit"},
	"admin/admintest":      {"admin", "descriptors"},
	"server":               {},
	"internal/metrics":     {"backend", "backend/denycache", "backend/fallback", "descriptors", "reload", "service"},
	"internal/clienttls":   {},
	"internal/wait":        {},
	"internal/fingerprint": {},
	"internal/msgpack":     {},
	"internal/certtest":    {},
	"internal/polltest":    {},
	"internal/redistest":   {"internal/certtest"},
	"source/xds/xdstest":   {"internal/certtest"},
	"test/envoyconf":       {},
	"cmd/rls/env":          {"backend/redis", "server"},
	"bench":                {},

	strings.TrimSuffix(module, "/"): {}, // this test's own
}

// composes is the package that may import all.
const composes = "cmd/rls"

func TestDependenciesPointDown(t *testing.T) {
	for pkg, imports := range list(t, `{{join .Imports " "}}`) {
		allowed, known := mayImport[pkg]
		assert.True(t, known || pkg == composes, "%s is not in mayImport", pkg)
		for _, imported := range imports {
			if ours, ok := strings.CutPrefix(imported, module); ok && pkg != composes {
				assert.Contains(t, allowed, ours, "%s imports it", pkg)
			}
			if pkg == "limit" {
				assert.NotContains(t, imported, ".", "limit is pure: the standard library only")
			}
			if !slices.Contains([]string{"backend/redis", "internal/redistest", "source/overrides"}, pkg) {
				assert.NotContains(t, imported, "redis/go-redis", "%s imports it", pkg)
			}
		}
	}
}

func TestTestHelpersStayInTests(t *testing.T) {
	for pkg, deps := range list(t, `{{join .Deps " "}}`) {
		for _, dep := range deps {
			if pkg == composes {
				assert.NotContains(t, []string{
					module + "backend/backendtest", module + "internal/redistest", module + "internal/certtest",
					module + "internal/polltest", module + "source/xds/xdstest", module + "admin/admintest", "testing",
				}, dep)
			}
		}
	}
}

// list returns what format says of each package of ours, split at blanks.
func list(t *testing.T, format string) map[string][]string {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} "+format, "./...").Output()
	require.NoError(t, err)
	packages := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		packages[strings.TrimPrefix(f[0], module)] = f[1:]
	}
	require.NotEmpty(t, packages)
	return packages
}
