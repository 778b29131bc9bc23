package limitstest

import (
	"math"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// JSONSchema returns the JSON Schema of test files, for editors.
func JSONSchema() map[string]any {
	schema := objectSchema(fileFields)
	schema["$schema"] = limitsfile.JSONSchemaDialect
	schema["title"] = "Test file of rls"
	schema["$defs"] = map[string]any{
		"settings": objectSchema(settingFields),
		"test":     objectSchema(testFields),
		"request":  objectSchema(requestFields),
		"target":   objectSchema(targetFields),
		"want":     objectSchema(wantFields),
		"status":   objectSchema(statusFields),
	}
	return schema
}

// objectSchema returns the schema of a mapping with the known fields.
func objectSchema(known []fields.Field) map[string]any {
	properties := map[string]any{}
	var required []string
	for _, f := range known {
		properties[f.Name] = fieldSchemas[f.Name]
		if f.Remedy != "" {
			required = append(required, f.Name)
		}
	}
	s := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// Schemas of values that several fields share.
var (
	anyScalar = []string{"string", "number", "boolean"}
	duration  = map[string]any{"type": []string{"string", "integer"}}
)

// fieldSchemas has the schema of each field. A name has the same meaning wherever it is
// allowed.
var fieldSchemas = map[string]any{
	"limits": map[string]any{
		"description": "Limits files or directories, relative to this file.",
		"anyOf":       []any{textSchema(""), map[string]any{"type": "array", "items": textSchema("")}},
	},
	"merge":       flagSchema("Merge files of the same domain (MERGE_DOMAIN_CONFIG)."),
	"domain":      textSchema("Domain of the requests."),
	"start":       textSchema("Time of the virtual clock at the start, in RFC 3339."),
	"settings":    described(reference("settings"), "Settings of the service."),
	"tests":       described(listSchema("test"), "Tests, each with empty counters."),
	"shadow_mode": flagSchema("SHADOW_MODE of the service."),
	"quota_mode":  flagSchema("QUOTA_MODE of the service."),
	"all_or_none": flagSchema("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT of the service."),
	"name":        textSchema("Name of the test: what it shows."),
	"requests":    described(listSchema("request"), "Requests in the order of their times."),
	"descriptor":  textSchema("Descriptor of the request: key=value,key=value."),
	"descriptors": map[string]any{
		"description": "Descriptors of the request.", "type": "array", "minItems": 1,
		"items": map[string]any{"anyOf": []any{textSchema(""), reference("target")}},
	},
	"at":     described(duration, "Time of the request since the start, such as 90s."),
	"repeat": countSchema("Number of equal requests.", 1, MaxRepeat),
	"every":  described(duration, "Time between equal requests."),
	"hits":   countSchema("Number of hits; 0 is a peek, and a negative number is a refund.", -limit.MaxHits, limit.MaxHits),
	"limit":  textSchema("In a request: its own limit. In a wanted answer: name or words of the limit."),
	"want":   described(reference("want"), "Wanted answer."),
	"code": map[string]any{
		"description": "Wanted code.", "enum": []string{codeOK, codeOverLimit},
	},
	"error":            textSchema("Part of the wanted error."),
	"admitted":         countSchema("Wanted number of admitted requests.", 0, MaxRepeat),
	"headers":          map[string]any{"description": "Wanted response headers.", "type": "object", "additionalProperties": textSchema("")},
	"body":             textSchema("Wanted body of the response to a denied request, or none."),
	"rule":             textSchema("Path of the wanted rule, or none."),
	"denied_in_shadow": flagSchema("Whether a rule in shadow mode denies."),
	"remaining":        countSchema("Wanted number of remaining hits.", 0, math.MaxUint32),
	"reset":            described(duration, "Wanted time until the limit resets."),
	"statuses":         described(listSchema("status"), "Wanted answer for each descriptor."),
}

// described returns s with a description.
func described(s map[string]any, description string) map[string]any {
	copied := map[string]any{}
	for name, value := range s {
		copied[name] = value
	}
	if description != "" {
		copied["description"] = description
	}
	return copied
}

func reference(name string) map[string]any { return map[string]any{"$ref": "#/$defs/" + name} }

func textSchema(description string) map[string]any {
	return described(map[string]any{"type": anyScalar}, description)
}

func flagSchema(description string) map[string]any {
	return described(map[string]any{"type": "boolean"}, description)
}

func countSchema(description string, minimum, maximum int64) map[string]any {
	return described(map[string]any{"type": "integer", "minimum": minimum, "maximum": maximum}, description)
}

func listSchema(item string) map[string]any {
	return map[string]any{"type": "array", "minItems": 1, "items": reference(item)}
}
