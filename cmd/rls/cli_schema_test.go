package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func TestSchemaCommandPrintsFilesOfDocs(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"limits", "tests"} {
		want, err := os.ReadFile("../../docs/schema/" + kind + ".json")
		require.NoError(t, err)
		out, _, code := rls(t, "schema", kind)
		assert.Zero(t, code)
		assert.Equal(t, string(want), out)
	}
}

func TestSchemaCommandNamesTheKinds(t *testing.T) {
	t.Parallel()
	_, errOut, code := rls(t, "schema", "limit")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, `got "limit", want limits, tests or protocol; did you mean limits?`)
}

func TestProtocolHasAllItsImports(t *testing.T) {
	t.Parallel()
	out, _, code := rls(t, "schema", "protocol")
	require.Zero(t, code)
	set := new(descriptorpb.FileDescriptorSet)
	require.NoError(t, proto.Unmarshal([]byte(out), set))
	files, err := protodesc.NewFiles(set)
	require.NoError(t, err)
	service, err := files.FindDescriptorByName("envoy.service.ratelimit.v3.RateLimitService")
	require.NoError(t, err)
	assert.NotNil(t, service.(protoreflect.ServiceDescriptor).Methods().ByName("ShouldRateLimit"))
}

// compileSchema returns the compiled schema of a kind.
func compileSchema(t *testing.T, kind string) *jsonschema.Schema {
	t.Helper()
	var text bytes.Buffer
	require.NoError(t, schemas[kind](&text))
	document, err := jsonschema.UnmarshalJSON(&text)
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource(kind, document))
	schema, err := compiler.Compile(kind)
	require.NoError(t, err)
	return schema
}

// validate validates a YAML document as an editor does.
func validate(t *testing.T, schema *jsonschema.Schema, text string) error {
	t.Helper()
	var value any
	require.NoError(t, yaml.Unmarshal([]byte(text), &value))
	asJSON, err := json.Marshal(value)
	require.NoError(t, err)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	require.NoError(t, err)
	return schema.Validate(document)
}

func TestExamplesMatchTheirSchemas(t *testing.T) {
	for kind, paths := range map[string][]string{
		"limits": {"limits.yaml", "limits-partner.yaml", "contour/limits.yaml", "istio/limits.yaml"},
		"tests":  {"limits_test.yaml"},
	} {
		schema := compileSchema(t, kind)
		for _, path := range paths {
			text, err := os.ReadFile("../../examples/" + path)
			require.NoError(t, err)
			var values struct{ Limits map[string]string } // of the Helm chart
			if yaml.Unmarshal(text, &values) != nil || len(values.Limits) == 0 {
				assert.NoError(t, validate(t, schema, string(text)), path)
			}
			for name, limits := range values.Limits {
				assert.NoError(t, validate(t, schema, limits), "%s: %s", path, name)
			}
		}
	}
}

// The schema must allow exactly the files that rls check --strict allows.
func TestLimitsSchemaAgreesWithCheck(t *testing.T) {
	schema := compileSchema(t, "limits")
	for text, isValid := range map[string]bool{
		"domain: shop\ndescriptors: [{key: a}]": true,
		"domain: shop\ndescriptors: [{key: a, rate_limit: {unit: MINUTE, requests_per_unit: 4294967295}}]":                             true,
		"domain: shop\ndescriptors: [{key: a, value: 12, rate_limit: {unlimited: true}}]":                                              true,
		"domain: shop\ndescriptors: [{key: a, value: null, shadow_mode: null, rate_limit: {unit: day, requests_per_unit: 0}}]":         true,
		"domain: shop\ndefaults: {algorithm: token_bucket}\ndescriptors: [{key: a, metadata: {x: [1]}}]":                               true,
		"domain: shop\ndescriptors: [{key: a, descriptors: [{key: b, rate_limits: [{unit: second, requests_per_unit: 1, name: x}]}]}]": true,
		"domian: shop":                            false,
		"domain: shop\ndescriptors: {key: a}":     false,
		"domain: shop\ndescriptors: [{value: a}]": false,
		"domain: shop\ndescriptors: [{key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}]":               false,
		"domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -1}}]":                    false,
		"domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, algorithm: gcra}}]":    false,
		"domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, fallback_ratio: 2}}]":  false,
		"domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, key: b}}]":             false,
		"domain: shop\ndescriptors: [{key: a, unit: day}]":                                                         false,
		"domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, unit_multiplier: 0}}]": false,
	} {
		_, _, code := rls(t, "check", "--strict", writeFile(t, "limits.yaml", text))
		assert.Equal(t, isValid, code == 0, "rls check of %s", text)
		assert.Equal(t, isValid, validate(t, schema, text) == nil, "schema of %s", text)
	}
}

func TestTestsSchemaRejectsMistakes(t *testing.T) {
	schema := compileSchema(t, "tests")
	validText := "limits: l.yaml\ndomain: shop\ntests: [{name: x, requests: [{descriptor: a=b, want: {code: OK}}]}]"
	require.NoError(t, validate(t, schema, validText))
	for oldText, mistake := range map[string]string{
		"limits:": "limit:", "name: x": "title: x", "code: OK": "code: MAYBE", "tests: [": "tests: [1, ", "a=b": "{descriptor: a}, repeat: 0",
	} {
		assert.Error(t, validate(t, schema, strings.Replace(validText, oldText, mistake, 1)), mistake)
	}
}
