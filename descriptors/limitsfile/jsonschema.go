package limitsfile

import (
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// JSONSchemaDialect is the version of JSON Schema that this project writes.
const JSONSchemaDialect = "https://json-schema.org/draft/2020-12/schema"

// JSONSchema returns the JSON Schema of limits files. It allows all files that Parse reads without a warning.
func JSONSchema() map[string]any {
	schema := objectSchema(rootObject)
	schema["$schema"] = JSONSchemaDialect
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

// The names of the schemas of values that change limits at run time.
const (
	OverrideSchema   = "override_value"
	RuleSchema       = "rule_value"
	SwitchSchema     = "switch_value"
	ShadowModeSchema = "shadow_mode_value"
)

// RuntimeJSONSchemas returns the schemas of changes at run time, and the schemas that they refer to with #/$defs/.
func RuntimeJSONSchemas() map[string]any {
	schemas := JSONSchema()["$defs"].(map[string]any)
	override := objectSchema(overrideObject)
	override["properties"].(map[string]any)["rate_limits"].(map[string]any)["items"] = reference("override_limit")
	shadowMode := objectSchema(shadowModeObject)
	shadowMode["properties"].(map[string]any)["shadow_mode"] = map[string]any{"type": "boolean", "description": "Whether all requests pass."}
	shadowMode["required"] = []string{"shadow_mode"}
	maps.Copy(schemas, map[string]any{
		OverrideSchema: override, "override_limit": objectSchema(overrideItemObject),
		RuleSchema: objectSchema(ruleObject), SwitchSchema: objectSchema(switchObject), ShadowModeSchema: shadowMode,
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

// WriteFieldsPage writes docs/limits-fields.md: the fields of each place in a limits file.
func WriteFieldsPage(w io.Writer) error {
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
	_, err := io.WriteString(w, b.String())
	return err
}
