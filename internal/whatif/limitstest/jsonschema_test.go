package limitstest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/testkit/goldentest"
)

func TestFileOfTheSchemaIsUpToDate(t *testing.T) {
	goldentest.RequireJSON(t, "../../../docs/schema/tests.json", testsSchema())
}

func TestEachFieldHasADescription(t *testing.T) {
	names := fields.Names(slices.Concat(fileFields, settingFields, testFields, requestFields, descriptorFields, wantFields, statusFields))
	slices.Sort(names)
	assert.Equal(t, slices.Compact(names), slices.Sorted(maps.Keys(fieldHelp)))
}

// testsSchema returns the JSON Schema of test files, for editors.
func testsSchema() map[string]any {
	schema := objectSchema(fileFields)
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "Test file of rls"
	schema["$defs"] = map[string]any{
		"settings":       objectSchema(settingFields),
		"test":           objectSchema(testFields),
		"request":        objectSchema(requestFields),
		"descriptorItem": objectSchema(descriptorFields),
		"want":           objectSchema(wantFields),
		"status":         objectSchema(statusFields),
	}
	return schema
}

func objectSchema(list []fields.Field) map[string]any {
	properties := map[string]any{}
	var requiredNames []string
	for _, field := range list {
		property := fieldSchema(field)
		property["description"] = fieldHelp[field.Name]
		properties[field.Name] = property
		if field.IsRequired() {
			requiredNames = append(requiredNames, field.Name)
		}
	}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(requiredNames) > 0 {
		schema["required"] = requiredNames
	}
	return schema
}

// fieldHelp has the description of each field for editors. A name has one description for all objects.
var fieldHelp = map[string]string{
	"limits":           "Limits files or directories, relative to this file.",
	"merge":            "Merge files of the same domain (MERGE_DOMAIN_CONFIG).",
	"domain":           "Domain of the requests.",
	"start":            "Time of the virtual clock at the start, in RFC 3339.",
	"settings":         "Settings of the service.",
	"tests":            "Tests, each with empty counters.",
	"shadow_mode":      "SHADOW_MODE of the service.",
	"quota_mode":       "QUOTA_MODE of the service.",
	"all_or_none":      "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT of the service.",
	"name":             "Name of the test: what it shows.",
	"requests":         "Requests in the order of their times.",
	"descriptor":       "Descriptor of the request: key=value,key=value.",
	"descriptors":      "Descriptors of the request.",
	"at":               "Time of the request since the start, such as 90s.",
	"repeat":           "Number of equal requests.",
	"every":            "Time between equal requests.",
	"hits":             "Number of hits; 0 is a peek, and a negative number is a refund.",
	"limit":            "In a request: the limit that the request states. In a wanted answer: the name or the text of the limit, such as 100 per minute.",
	"want":             "Wanted answer.",
	"code":             "Wanted code.",
	"error":            "Part of the wanted error.",
	"admitted":         "Wanted number of admitted requests.",
	"headers":          "Wanted response headers.",
	"body":             "Wanted body of the response to a denied request, or none.",
	"rule":             "Path of the wanted rule, or none.",
	"denied_in_shadow": "Whether a rule in shadow mode denies.",
	"remaining":        "Wanted number of remaining hits.",
	"reset":            "Wanted time until the limit resets.",
	"statuses":         "Wanted answer for each descriptor.",
}

// itemNames maps the name of a list of objects to the definition of its items in $defs.
var itemNames = map[string]string{"tests": "test", "requests": "request", "statuses": "status"}

func fieldSchema(field fields.Field) map[string]any {
	scalar := map[string]any{"type": []string{"string", "number", "boolean"}}
	switch {
	case field.Name == "limits":
		return map[string]any{"anyOf": []any{scalar, map[string]any{"type": "array", "items": scalar}}}
	case field.Name == "descriptors":
		return map[string]any{"type": "array", "minItems": 1, "items": map[string]any{"anyOf": []any{scalar, reference("descriptorItem")}}}
	case field.Kind == fields.List:
		return map[string]any{"type": "array", "minItems": 1, "items": reference(itemNames[field.Name])}
	case field.Kind == fields.Object:
		return reference(field.Name)
	case field.Kind == fields.AnyMapping:
		return map[string]any{"type": "object", "additionalProperties": scalar}
	case field.Kind == fields.Flag:
		return map[string]any{"type": "boolean"}
	case field.Kind == fields.Count:
		return map[string]any{"type": "integer", "minimum": field.Min, "maximum": field.Max}
	case field.Kind == fields.Choice:
		return map[string]any{"enum": field.Choices}
	case strings.HasPrefix(field.Want, wantDuration): // the error messages of field ask for a duration
		return map[string]any{"type": []string{"string", "integer"}}
	}
	return scalar
}

func reference(name string) map[string]any { return map[string]any{"$ref": "#/$defs/" + name} }
