package limitsfile

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/testkit/goldentest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestFilesOfTheSchemaAreUpToDate(t *testing.T) {
	goldentest.RequireJSON(t, "../../docs/schema/limits.json", limitsSchema())
	goldentest.RequireJSON(t, "testdata/runtime-schemas.json", runtimeSchemas()) // test/openapi puts it into docs/openapi/admin.json
	goldentest.RequireText(t, "../../docs/limits-fields.md", fieldsPage())
}

func TestEachFieldHasHelpForEditors(t *testing.T) {
	for _, r := range schema {
		assert.NotEmpty(t, r.help, r.Name)
		if r.Kind == fields.List && r.objects&fileObjects != 0 {
			assert.Contains(t, itemNames, r.Name)
		}
	}
}

// limitsSchema returns the JSON Schema of limits files. It allows all files that Parse reads without a warning.
func limitsSchema() map[string]any {
	schema := objectSchema(rootObject)
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "Limits file of rls"
	schema["required"] = []string{"domain"}
	descriptor := objectSchema(descriptorObject)
	descriptor["required"] = []string{"key"}
	schema["$defs"] = map[string]any{
		"descriptor": descriptor,
		"rate_limit": objectSchema(rateLimitObject),
		"replaces":   objectSchema(replacesObject),
		"defaults":   objectSchema(defaultsObject),
		"not":        objectSchema(notObject),
		"list_file":  objectSchema(listObject),
		"denial":     objectSchema(denialObject),
		"quota":      objectSchema(quotaObject),
		"quota_key":  map[string]any{"type": []string{"string", "integer", "boolean"}},
	}
	return schema
}

// runtimeSchemas returns the schemas of changes at run time, and the schemas that they refer to with #/$defs/.
func runtimeSchemas() map[string]any {
	schemas := limitsSchema()["$defs"].(map[string]any)
	override := objectSchema(overrideObject)
	override["properties"].(map[string]any)["rate_limits"].(map[string]any)["items"] = reference("override_limit")
	shadowMode := objectSchema(shadowModeObject)
	shadowMode["properties"].(map[string]any)["shadow_mode"] = map[string]any{"type": "boolean", "description": "Whether all requests pass."}
	shadowMode["required"] = []string{"shadow_mode"}
	maps.Copy(schemas, map[string]any{
		"override_value": override, "override_limit": objectSchema(overrideItemObject),
		"rule_value": objectSchema(ruleObject), "switch_value": objectSchema(switchObject), "shadow_mode_value": shadowMode,
	})
	return schemas
}

func objectSchema(t objectType) map[string]any {
	properties := map[string]any{}
	for i := range schema {
		if r := &schema[i]; r.objects&t != 0 {
			property := r.jsonSchema()
			property["description"] = r.help
			properties[r.Name] = property
		}
	}
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

func (r *schemaField) jsonSchema() map[string]any {
	switch r.Kind {
	case fields.Text:
		if r.Name == "unit" {
			return unitSchema()
		}
		return map[string]any{"type": []string{"string", "integer", "boolean", "null"}}
	case fields.ListOrFile:
		entry := map[string]any{"type": []string{"string", "integer", "boolean"}}
		return map[string]any{"anyOf": []any{
			map[string]any{"type": "array", "items": entry, "minItems": 1},
			reference("list_file"),
			map[string]any{"type": "null"},
		}}
	case fields.Flag:
		return map[string]any{"type": []string{"boolean", "null"}}
	case fields.Count:
		return map[string]any{"type": []string{"integer", "null"}, "minimum": r.Min, "maximum": r.Max}
	case fields.Ratio:
		return map[string]any{"type": []string{"number", "null"}, "exclusiveMinimum": 0, "maximum": r.MaxRatio}
	case fields.Duration:
		return map[string]any{"type": []string{"string", "null"}, "pattern": `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`}
	case fields.Choice:
		choices := []any{nil}
		for _, c := range r.Choices {
			choices = append(choices, c)
		}
		return map[string]any{"enum": choices}
	case fields.Any:
		return map[string]any{"anyOf": []any{reference(r.Name), map[string]any{"type": []string{"boolean", "null"}}}}
	case fields.List:
		return map[string]any{"type": []string{"array", "null"}, "items": reference(itemNames[r.Name])}
	case fields.Object:
		return map[string]any{"anyOf": []any{reference(r.Name), map[string]any{"type": "null"}}}
	}
	return map[string]any{"type": []string{"object", "null"}}
}

// itemNames maps the name of a list to the name of the definition of its items in $defs.
var itemNames = map[string]string{"descriptors": "descriptor", "rate_limits": "rate_limit", "replaces": "replaces", "quota_order": "quota_key"}

func reference(name string) map[string]any { return map[string]any{"$ref": "#/$defs/" + name} }

// unitSchema allows units in any case. Editors offer the units in lower case.
func unitSchema() map[string]any {
	var patterns []string
	for _, name := range limit.UnitNames() {
		var pattern strings.Builder
		for _, c := range name {
			pattern.WriteString("[" + string(c) + strings.ToUpper(string(c)) + "]")
		}
		patterns = append(patterns, pattern.String())
	}
	return map[string]any{"anyOf": []any{
		map[string]any{"enum": limit.UnitNames()},
		map[string]any{"type": "string", "pattern": "^(" + strings.Join(patterns, "|") + ")$"},
		map[string]any{"type": "null"},
	}}
}

// fieldsPage returns the text of docs/limits-fields.md: the fields of each place in a limits file.
func fieldsPage() string {
	var b strings.Builder
	b.WriteString(`# Fields of limits files

This page lists all fields of a limits file. ` + "`make docs`" + ` writes this page from the parser.
[limits.md](limits.md) explains how the fields work together. Fields marked + exist only in rls, and
not in envoyproxy/ratelimit. Each field can be left out or null, except ` + "`domain`, `key` and `unit`" + `.
` + "With `algorithm: concurrency`, `unit` is an error.\n")
	isListed := map[string]bool{} // by the name and the help of a field
	for i, objectName := range objectNames {
		t := objectType(1 << i)
		if t&fileObjects == 0 {
			continue
		}
		var listedNames []string
		var rows []schemaField
		for _, r := range schema {
			if r.objects&t == 0 {
				continue
			}
			if name := "`" + r.Name + "`"; isListed[name+r.help] {
				listedNames = append(listedNames, name)
			} else {
				rows = append(rows, r)
				isListed[name+r.help] = true
			}
		}
		if rows != nil {
			fmt.Fprintf(&b, "\n## Fields of %s\n\n| field | values | meaning |\n|---|---|---|\n", objectName)
		}
		for _, r := range rows {
			mark := ""
			if r.isOnlyInRls {
				mark = " +"
			}
			fmt.Fprintf(&b, "| `%s`%s | %s | %s |\n", r.Name, mark, r.ValidValues(), r.help)
		}
		if listedNames != nil {
			fmt.Fprintf(&b, "\nTables above explain these further fields of %s: %s.\n", objectName, strings.Join(listedNames, ", "))
		}
	}
	return b.String()
}
