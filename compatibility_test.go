package rls_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var addPromises = flag.Bool("promise", false, "add the names of this version to testdata/promises.txt")

const promisesFile = "testdata/promises.txt"

// promisedNames match the names that the pages list. Tests beside the code compare these pages with
// the code.
var promisedNames = []struct {
	kind, page string
	pattern    *regexp.Regexp
}{
	{"setting", "docs/settings.md", regexp.MustCompile("(?m)^\\| `([A-Z0-9_]+)` \\|")},
	{"metric", "docs/metrics.md", regexp.MustCompile("(?m)^\\| `((?:rls|ratelimit)_[\\w{},]+)` \\| (?:counter|gauge|histogram) \\|")},
	{"version of stored counters", "backend/redis/key.go", regexp.MustCompile(`(?m)^\tlayout\w+ = "(v\d+:)"`)},
}

// TestNoPromisedNameIsRemoved compares the names of this version with those of the last versions.
// docs/migrate.md explains the promises.
func TestNoPromisedNameIsRemoved(t *testing.T) {
	currentNames := map[string]bool{}
	for _, p := range promisedNames {
		matches := p.pattern.FindAllStringSubmatch(readFile(t, p.page), -1)
		require.NotEmpty(t, matches, p.page)
		for _, m := range matches {
			currentNames[p.kind+" "+m[1]] = true
		}
	}
	var schema map[string]any
	require.NoError(t, json.Unmarshal([]byte(readFile(t, "docs/schema/limits.json")), &schema))
	addFields(currentNames, "file", schema)
	for name, definition := range schema["$defs"].(map[string]any) {
		addFields(currentNames, name, definition)
	}

	listedNames := map[string]bool{}
	for line := range strings.Lines(readFile(t, promisesFile)) {
		listedNames[strings.TrimSuffix(line, "\n")] = true
	}
	if *addPromises {
		maps.Copy(listedNames, currentNames)
		names := slices.Sorted(maps.Keys(listedNames))
		require.NoError(t, os.WriteFile(promisesFile, []byte(strings.Join(names, "\n")+"\n"), 0o644))
	}
	require.Greater(t, len(listedNames), 100)
	for name := range listedNames {
		assert.True(t, currentNames[name], "The %s is gone. This breaks upgrades: keep the name, or follow docs/migrate.md", name)
	}
}

// addFields adds the fields of an object of the schema, and the names that a field can have as its
// value.
func addFields(names map[string]bool, object string, schema any) {
	definition, _ := schema.(map[string]any)
	properties, _ := definition["properties"].(map[string]any)
	for field, value := range properties {
		name := fmt.Sprintf("field %s.%s", object, field)
		names[name] = true
		constraints, _ := value.(map[string]any)
		values, _ := constraints["enum"].([]any)
		for _, value := range values {
			if text, isText := value.(string); isText {
				names[name+" = "+text] = true
			}
		}
	}
}
