package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"
)

// thisPackage is the path of this package. Other packages are relative to it.
const thisPackage = "github.com/seed-81f232ab/rls/test/openapi"

// object is a JSON object.
type object = map[string]any

// document is an OpenAPI document.
type document object

// newDocument returns a document without paths.
func newDocument(title, description string, servers ...object) document {
	return document{
		"openapi": "3.1.0",
		"info": object{
			"title": title, "description": description, "version": "1",
			"license": object{"name": "Apache 2.0", "identifier": "Apache-2.0"},
		},
		"servers":    servers,
		"paths":      object{},
		"components": object{"schemas": object{}},
	}
}

// encode returns the document as JSON.
func (d document) encode() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(d) // maps, lists and texts never fail
	return b.Bytes()
}

func (d document) schemas() object { return d["components"].(object)["schemas"].(object) }

// addOperation adds a method of a path.
func (d document) addOperation(method, path string, operation object) {
	paths := d["paths"].(object)
	if paths[path] == nil {
		paths[path] = object{}
	}
	paths[path].(object)[strings.ToLower(method)] = operation
}

// schemaOf returns a reference to the schema of the type of v, which it adds to the document. With
// strict, unknown fields are errors.
func (d document) schemaOf(v any, strict bool) (object, error) {
	r := jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: !strict}
	for _, folder := range []string{"service/check", "internal/admin", "internal/source/changes", "descriptors/override"} {
		if err := r.AddGoComments(thisPackage, "../../"+folder, jsonschema.WithFullComment()); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(r.Reflect(v))
	if err != nil {
		return nil, err
	}
	var schema struct {
		Defs object `json:"$defs"`
	}
	if err := json.Unmarshal(withComponentReferences(text), &schema); err != nil {
		return nil, err
	}
	maps.Copy(d.schemas(), schema.Defs)
	return object{"$ref": "#/components/schemas/" + reflect.TypeOf(v).Name()}, nil
}

// jsonContent returns the content of a body with a schema.
func jsonContent(schema object) object {
	return object{"application/json": object{"schema": schema}}
}

// response returns a response with a JSON body.
func response(description string, schema object) object {
	return object{"description": description, "content": jsonContent(schema)}
}

// withComponentReferences returns JSON Schemas whose references lead to the components of a document.
func withComponentReferences(text []byte) []byte {
	return bytes.ReplaceAll(text, []byte("#/$defs/"), []byte("#/components/schemas/"))
}
