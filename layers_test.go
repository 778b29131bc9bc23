// Package rls_test checks the imports between packages, and the docs.
package rls_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/seed-81f232ab/rls/"

// mayImport lists for each package of this module the packages of this module that it may
// import. docs/design.md explains the layers.
var mayImport = map[string][]string{
	"limit":                  {},
	"descriptors":            {"descriptors/condition", "descriptors/limitsfile", "limit"},
	"descriptors/condition":  {},
	"descriptors/limitsfile": {"descriptors/condition", "internal/boundedyaml", "limit"},
	"descriptors/override":   {"descriptors", "descriptors/limitsfile"},
	"reload":                 {"descriptors", "descriptors/limitsfile", "descriptors/override", "source"},
	"source/file":            {"descriptors/limitsfile", "internal/heap", "source"},
	"source/xds":             {"descriptors/limitsfile", "internal/clienttls", "internal/heap", "internal/wait", "source"},
	"source":                 {"descriptors/limitsfile"},
	"source/changes":         {},
	"source/overrides":       {"internal/wait", "source", "source/changes"},
	"backend":                {"limit"},
	"backend/local":          {"backend", "internal/fingerprint", "limit"},
	"backend/redis":          {"backend", "internal/wait", "limit", "lua"},
	"backend/scope":          {"backend", "limit"},
	"backend/fallback":       {"backend", "internal/wait", "limit"},
	"backend/denycache":      {"backend", "internal/fingerprint", "limit"},
	"backend/guard":          {"backend", "limit"},
	"backend/lease":          {"backend", "internal/fingerprint", "limit"},
	"backend/backendtest":    {"backend", "internal/wait", "limit"},
	"lua":                    {},
	"timeline":               {},
	"page":                   {"descriptors", "explain", "live", "timeline"},
	"page/pagetest":          {"live", "timeline"},
	"candidate":              {"backend", "descriptors", "service", "source"},
	"live":                   {"backend", "descriptors", "descriptors/limitsfile", "limit", "service", "timeline"},
	"service":                {"backend", "descriptors", "limit"},
	"explain":                {"backend", "descriptors", "descriptors/limitsfile", "limit", "service"},
	"client":                 {"backend", "backend/local", "descriptors", "descriptors/limitsfile", "limit"},
	"client/clienttest":      {"client"},
	"limitsdiff":             {"descriptors", "descriptors/condition", "descriptors/limitsfile", "limit"},
	"limitstest":             {"backend/local", "descriptors", "descriptors/limitsfile", "explain", "internal/boundedyaml", "limit", "service"},
	"limitsplan":             {"backend/local", "decisionlog", "descriptors", "descriptors/limitsfile", "internal/boundedyaml", "limit", "service"},
	"tracing":                {"backend/redis", "service"},
	"admin":                  {"backend", "descriptors", "descriptors/limitsfile", "descriptors/override", "limit", "source/changes"},
	"admin/admintest":        {"admin", "descriptors", "descriptors/limitsfile", "descriptors/override", "source/changes"},
	"check":                  {"limit", "service"},
	"docs/openapi":           {},
	"server":                 {"internal/admission", "internal/codec", "internal/wait", "limit"},
	"callers":                {"descriptors/limitsfile", "internal/boundedyaml", "internal/watchfile"},
	"internal/admission":     {},
	"internal/codec":         {},
	"decisionlog":            {"backend", "descriptors", "service"},
	"internal/metrics":       {"backend", "backend/denycache", "backend/fallback", "backend/lease", "backend/redis", "candidate", "decisionlog", "descriptors", "descriptors/limitsfile", "internal/admission", "limit", "reload", "service"},
	"internal/statsd":        {"internal/metrics"},
	"internal/boundedyaml":   {},
	"internal/clienttls":     {},
	"internal/heap":          {},
	"internal/wait":          {},
	"internal/watchfile":     {"internal/wait"},
	"internal/fingerprint":   {},
	"internal/certtest":      {},
	"internal/polltest":      {},
	"internal/redistest":     {"internal/certtest"},
	"source/xds/xdstest":     {"internal/certtest"},
	"test/envoyconf":         {},
	"cmd/rls/env":            {"backend/redis", "callers", "internal/statsd", "server"},
	"test/attacks":           {},
	"test/clients":           {},
	"test/release":           {},
	"test/upgrade":           {},
	"scripts/licenses":       {},
	"bench":                  {},
	"bench/curves":           {},
	"bench/load":             {"bench/curves"},
	"bench/scale":            {"bench/curves"},

	strings.TrimSuffix(module, "/"): {}, // the package of this test
}

// wiring is the package that may import all others.
const wiring = "cmd/rls"

// testOnly lists the packages that the program must not contain.
var testOnly = []string{
	"backend/backendtest", "internal/redistest", "internal/certtest", "internal/polltest",
	"source/xds/xdstest", "admin/admintest", "test/envoyconf", "page/pagetest", "client/clienttest",
}

// redisClients lists the packages that may import go-redis.
var redisClients = []string{"backend/redis", "internal/redistest", "source/overrides"}

func TestPackagesImportOnlyLowerLayers(t *testing.T) {
	imports := goList(t, `{{join .Imports " "}}`)
	for pkg := range mayImport {
		assert.Contains(t, imports, pkg, "mayImport has a row for a missing package")
	}
	for pkg, imported := range imports {
		allowed, ok := mayImport[pkg]
		assert.True(t, ok || pkg == wiring, "mayImport has no row for %s", pkg)
		for _, path := range imported {
			if name, ok := strings.CutPrefix(path, module); ok && pkg != wiring {
				assert.Contains(t, allowed, name, "%s must not import it", pkg)
			}
			if pkg == "limit" {
				assert.NotContains(t, path, ".", "limit may import the standard library only")
			}
			if !slices.Contains(redisClients, pkg) {
				assert.NotContains(t, path, "redis/go-redis", "%s must not import it", pkg)
			}
		}
	}
}

func TestProgramContainsNoTestHelpers(t *testing.T) {
	for _, dependency := range goList(t, `{{join .Deps " "}}`)[wiring] {
		assert.NotEqual(t, "testing", dependency)
		assert.NotContains(t, testOnly, strings.TrimPrefix(dependency, module))
	}
}

// environmentReader matches calls that read the environment.
var environmentReader = regexp.MustCompile(`\bos\.(Getenv|LookupEnv|Environ|ExpandEnv)\(`)

func TestOnlyCommandReadsEnvironment(t *testing.T) {
	for pkg, files := range goList(t, `{{.Dir}} {{join .GoFiles " "}}`) {
		if pkg == wiring || pkg == wiring+"/env" {
			continue
		}
		for _, name := range files[1:] {
			source, err := os.ReadFile(filepath.Join(files[0], name))
			require.NoError(t, err)
			assert.False(t, environmentReader.Match(source), "%s/%s reads the environment", pkg, name)
		}
	}
}

// goList returns the words of the go list template for each package of this module.
func goList(t *testing.T, template string) map[string][]string {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} "+template, "./...").Output()
	require.NoError(t, err)
	words := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		words[strings.TrimPrefix(fields[0], module)] = fields[1:]
	}
	require.NotEmpty(t, words)
	return words
}
