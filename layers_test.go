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

// layers lists the rooms of this module, from the highest layer to the lowest. A package may import
// packages of its own room and of lower layers. docs/design.md draws the rooms.
var layers = [][]string{
	{"cmd", "deploy", "test"},
	{"internal/admin"},
	{"internal/whatif"},
	{"internal/observe"},
	{"internal/server", "internal/source", "client"},
	{"service"},
	{"descriptors", "backend"},
	{"limit", "lua", "internal/base", "docs"},
}

// testRoom is a room with helpers of tests. They may import all rooms.
const testRoom = "internal/testkit"

// wiringPackage is the package that connects the others. Only this package and its settings read the environment.
const wiringPackage = "cmd/rls"

// testOnly lists more packages that the program must not contain.
var testOnly = []string{"backend/backendtest", "client/clienttest", "internal/testkit/admintest"}

// redisClients lists the packages that may import go-redis.
var redisClients = []string{"backend/redis", "internal/testkit/redistest", "internal/source/overrides"}

func TestPackagesImportOnlyTheirRoomAndLowerLayers(t *testing.T) {
	for pkg, imported := range goList(t, `{{join .Imports " "}}`) {
		room, layer := roomOf(pkg)
		if !assert.NotEmpty(t, room, "layers has no room for %s", pkg) {
			continue
		}
		for _, path := range imported {
			if pkg == "limit" {
				assert.NotContains(t, path, ".", "limit may import the standard library only")
			}
			if !slices.Contains(redisClients, pkg) {
				assert.NotContains(t, path, "redis/go-redis", "%s must not import it", pkg)
			}
			name, ok := strings.CutPrefix(path, module)
			if !ok || room == testRoom {
				continue
			}
			otherRoom, otherLayer := roomOf(name)
			assert.True(t, otherRoom == room || otherLayer > layer, "%s must not import %s", pkg, name)
		}
	}
}

// roomOf returns the room of pkg, and the index of its layer.
func roomOf(pkg string) (room string, layer int) {
	if pkg == strings.TrimSuffix(module, "/") { // the package of this test
		return "test", 0
	}
	for i, rooms := range append(layers, []string{testRoom}) {
		for _, room := range rooms {
			if pkg == room || strings.HasPrefix(pkg, room+"/") {
				return room, i
			}
		}
	}
	return "", 0
}

func TestProgramContainsNoTestHelpers(t *testing.T) {
	for _, dependency := range goList(t, `{{join .Deps " "}}`)[wiringPackage] {
		assert.NotEqual(t, "testing", dependency)
		name := strings.TrimPrefix(dependency, module)
		room, _ := roomOf(name)
		assert.False(t, room == testRoom || slices.Contains(testOnly, name), "the program contains %s", name)
	}
}

// remoteClientPackages are the packages that a program may contain if it only asks a remote service by
// package client. A path with a / at its end stands for all packages below it.
var remoteClientPackages = []string{
	module + "internal/base/entrytext", module + "internal/base/wait", module + "limit",
	"github.com/envoyproxy/go-control-plane/envoy/", "github.com/envoyproxy/protoc-gen-validate/", "github.com/cncf/xds/go/",
	"google.golang.org/", "golang.org/x/", "github.com/cenkalti/backoff/",
}

func TestRemoteClientContainsOnlyGRPCAndMessages(t *testing.T) {
	for _, dependency := range goList(t, `{{join .Deps " "}}`)["client"] {
		assert.NotEqual(t, "time/tzdata", dependency, "client needs no time zones")
		host, _, _ := strings.Cut(dependency, "/")
		if !strings.Contains(host, ".") {
			continue // the standard library
		}
		assert.True(t, slices.ContainsFunc(remoteClientPackages, func(path string) bool {
			return dependency == path || strings.HasSuffix(path, "/") && strings.HasPrefix(dependency, path)
		}), "client must not contain %s", dependency)
	}
}

// environmentReader matches calls that read the environment.
var environmentReader = regexp.MustCompile(`\bos\.(Getenv|LookupEnv|Environ|ExpandEnv)\(`)

func TestOnlyCommandReadsEnvironment(t *testing.T) {
	for pkg, files := range goList(t, `{{.Dir}} {{join .GoFiles " "}}`) {
		if pkg == wiringPackage || pkg == wiringPackage+"/env" || strings.HasPrefix(pkg, testRoom+"/") { // only tests import testkit
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
