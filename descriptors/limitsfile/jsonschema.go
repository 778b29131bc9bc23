package limitsfile

import (
	"maps"
	"math"
	"strings"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// fieldHelp describes each field of a limits file for editors.
var fieldHelp = map[string]string{
	"domain":             "Domain of the rate-limit requests, as in Envoy's filter.",
	"defaults":           "Fields of all limits of the domain that do not set them.",
	"descriptors":        "Rules. A nested list has the rules for the next entry of a descriptor.",
	"key":                "Key of the entry. A * matches any text.",
	"value":              "Value of the entry. Without this field, each value has its own counter. A * matches any text.",
	"cidr":               "Condition: the value is an IP address in one of these networks.",
	"in":                 "Condition: the value is in this list.",
	"prefix":             "Condition: the value starts with this text.",
	"regex":              "Condition: this regular expression (RE2) matches the whole value.",
	"cel":                "Condition: this expression in CEL is true. It can use value and entries.",
	"not":                "Condition: the value does not meet the nested condition.",
	"file":               "File with one entry a line. A relative path starts at the directory of the limits file.",
	"rate_limit":         "Limit of the rule.",
	"rate_limits":        "Limits of the rule. All of them must admit a request.",
	"shadow_mode":        "Count and report denials, but let the requests pass.",
	"quota_mode":         "Deny a request only if all its descriptors in quota mode are over their limits.",
	"detailed_metric":    "Metrics of the rule have all entries of the descriptor.",
	"value_to_metric":    "Metrics of the rule have the value of this entry.",
	"share_threshold":    "All values that match the * share one counter.",
	"metadata":           "Metadata that the answer has when the rule lets a request pass.",
	"refunds":            "false rejects requests that refund hits of a limit that counts.",
	"enforce":            "Percentage of the keys whose denials count. The rule is in shadow mode for all other keys.",
	"max_hits":           "Largest number of hits of one call. A call with more hits is denied and charges nothing.",
	"denial":             "Body and headers of the response to a request that the rule denies.",
	"message":            "Plain text of the body.",
	"body":               "Body as it is, for example JSON. Its content-type belongs in headers.",
	"headers":            "Names and values of headers.",
	"unit":               "Window of the limit.",
	"requests_per_unit":  "Hits that a window admits, from 0 to 4294967295.",
	"unlimited":          "true admits all requests without a counter.",
	"name":               "Name of the limit, in metrics and for replaces.",
	"replaces":           "Names of the limits that this limit replaces.",
	"unit_multiplier":    "Number of units in a window.",
	"timezone":           "Time zone, such as Europe/Berlin. Windows are days, weeks, months or years of its calendar.",
	"algorithm":          "How hits are counted.",
	"hold":               "Time after which a hold of algorithm concurrency expires unless it is renewed, such as 30s.",
	"burst":              "Hits that token_bucket admits at once.",
	"scope":              "global counts over all replicas, instance counts in each replica.",
	"on_backend_failure": "How the limit decides while Redis is down.",
	"fallback_ratio":     "Share of the limit that each replica admits while Redis is down.",
	"charge_denied":      "Whether a denied request is charged.",
	"lease":              "Replicas take permits from Redis in batches and admit hits without a trip to Redis.",
	"lease_waste":        "Largest share of the limit that replicas may hold unused.",
	"enabled":            "false turns the limit off.",
	"factor":             "Multiplies requests_per_unit and burst.",
	"expires_at":         "End of the change (RFC 3339).",
	"reason":             "Why the author makes the change.",
	"set_by":             "Author of the change. The admin API sets it.",
	"set_at":             "Time of the change. The admin API sets it.",
}

// JSONSchemaDialect is the version of JSON Schema that this project writes.
const JSONSchemaDialect = "https://json-schema.org/draft/2020-12/schema"

// JSONSchema returns the JSON Schema of limits files, for editors. The schema allows all
// files without warnings that Parse allows.
func JSONSchema() map[string]any {
	schema := levelSchema(rootLevel)
	schema["$schema"] = JSONSchemaDialect
	schema["title"] = "Limits file of rls"
	schema["required"] = []string{"domain"}
	descriptor := levelSchema(descriptorLevel)
	descriptor["required"] = []string{"key"}
	schema["$defs"] = map[string]any{
		"descriptor": descriptor,
		"rate_limit": levelSchema(rateLimitLevel),
		"replaces":   levelSchema(replacesLevel),
		"defaults":   levelSchema(defaultsLevel),
		"not":        levelSchema(notLevel),
		"list_file":  levelSchema(listLevel),
		"denial":     levelSchema(denialLevel),
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

// RuntimeJSONSchemas returns the JSON Schemas of values that change limits at run time, and the
// schemas that they need. References start with #/$defs/.
func RuntimeJSONSchemas() map[string]any {
	all := JSONSchema()["$defs"].(map[string]any)
	override := levelSchema(overrideLevel)
	override["properties"].(map[string]any)["rate_limits"].(map[string]any)["items"] = reference("override_limit")
	notes := levelSchema(switchLevel)
	rule := levelSchema(descriptorLevel)
	fields := rule["properties"].(map[string]any)
	for _, name := range []string{"key", "value", "descriptors"} { // the target has them
		delete(fields, name)
	}
	maps.Copy(fields, notes["properties"].(map[string]any))
	shadowMode := levelSchema(switchLevel)
	shadowMode["properties"].(map[string]any)["shadow_mode"] = map[string]any{"type": "boolean", "description": "Whether all requests pass."}
	shadowMode["required"] = []string{"shadow_mode"}
	maps.Copy(all, map[string]any{
		OverrideSchema: override, "override_limit": levelSchema(patchLevel), RuleSchema: rule, SwitchSchema: notes, ShadowModeSchema: shadowMode,
	})
	return all
}

// levelSchema returns the schema of the mapping at level l.
func levelSchema(l level) map[string]any {
	properties := map[string]any{}
	for i := range schema {
		if r := &schema[i]; r.levels&l != 0 {
			property := r.jsonSchema()
			property["description"] = fieldHelp[r.Name]
			properties[r.Name] = property
		}
	}
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

// jsonSchema returns the schema of the field. Every field may be null.
func (r *row) jsonSchema() map[string]any {
	switch r.Kind {
	case fields.Text:
		if r.Name == "unit" {
			return unitSchema()
		}
		return map[string]any{"type": []string{"string", "integer", "boolean", "null"}}
	case fields.Entries:
		entry := map[string]any{"type": []string{"string", "integer", "boolean"}}
		return map[string]any{"anyOf": []any{
			map[string]any{"type": "array", "items": entry, "minItems": 1},
			reference("list_file"),
			map[string]any{"type": "null"},
		}}
	case fields.Flag:
		return map[string]any{"type": []string{"boolean", "null"}}
	case fields.Count:
		return map[string]any{"type": []string{"integer", "null"}, "minimum": r.Min, "maximum": uint32(math.MaxUint32)}
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
	case fields.List:
		return map[string]any{"type": []string{"array", "null"}, "items": reference(itemNames[r.Name])}
	case fields.Object:
		return map[string]any{"anyOf": []any{reference(r.Name), map[string]any{"type": "null"}}}
	}
	return map[string]any{"type": []string{"object", "null"}}
}

// itemNames has the definition of the items of each list.
var itemNames = map[string]string{"descriptors": "descriptor", "rate_limits": "rate_limit", "replaces": "replaces"}

func reference(name string) map[string]any { return map[string]any{"$ref": "#/$defs/" + name} }

// unitSchema allows units in any case. Editors offer the units in lower case.
func unitSchema() map[string]any {
	var anyCase []string
	for _, name := range limit.UnitNames() {
		var pattern strings.Builder
		for _, c := range name {
			pattern.WriteString("[" + string(c) + strings.ToUpper(string(c)) + "]")
		}
		anyCase = append(anyCase, pattern.String())
	}
	return map[string]any{"anyOf": []any{
		map[string]any{"enum": limit.UnitNames()},
		map[string]any{"type": "string", "pattern": "^(" + strings.Join(anyCase, "|") + ")$"},
		map[string]any{"type": "null"},
	}}
}
