package main

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"strings"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
)

// adminDocument returns the document of the admin API.
func adminDocument() (document, error) {
	d := newDocument("Admin API of rls",
		"Overrides, rules and switches of run time, and counters. docs/overrides.md explains them.",
		object{"url": "http://localhost:6070", "description": "the debug listener (DEBUG_HOST, DEBUG_PORT)"})
	d["components"].(object)["securitySchemes"] = object{
		"token":       object{"type": "http", "scheme": "bearer", "description": "a token of ADMIN_TOKEN or ADMIN_TOKENS_FILE"},
		"certificate": object{"type": "mutualTLS", "description": "a client certificate of DEBUG_TLS_CLIENT_CACERT"},
	}
	d["security"] = []object{{"token": []string{}}, {"certificate": []string{}}}
	errs := []error{d.addBodies()}
	problems, err := d.schemaOf(admin.Problems{}, false)
	errs = append(errs, err)
	for _, e := range admin.Endpoints() {
		operation, err := d.operation(&e, problems)
		errs = append(errs, err)
		d.addOperation(e.Method, e.Path, operation)
	}
	return d, errors.Join(errs...)
}

// operation returns the operation of an endpoint.
func (d document) operation(e *admin.Endpoint, problems object) (object, error) {
	var errs []error
	schema := func(v any) object {
		s, err := d.schemaOf(v, false)
		errs = append(errs, err)
		return s
	}
	var answers []object
	for _, v := range e.Answers {
		answers = append(answers, schema(v))
	}
	success := answers[0]
	if len(answers) > 1 {
		success = object{"anyOf": answers}
	}
	responses := object{
		"200":     response("The call has succeeded.", success),
		"401":     response("The caller is not authorized.", problems),
		"default": response("The call was rejected or has failed.", problems),
	}
	parameters := []object{}
	for _, p := range e.Params {
		parameters = append(parameters, object{
			"name": p.Name, "in": "query", "required": p.Required, "description": p.Help, "schema": object{"type": p.Type},
		})
	}
	if e.IsConditional {
		for _, condition := range []struct{ name, help string }{
			{"If-Match", "the ETag that the value must have, or * for any value"},
			{"If-None-Match", "* for no value"},
		} {
			parameters = append(parameters, object{"name": condition.name, "in": "header", "description": condition.help, "schema": object{"type": "string"}})
		}
		responses["412"] = response("The value is not the expected one. Nothing was changed.", schema(admin.Conflict{}))
	}
	action := strings.ReplaceAll(strings.TrimPrefix(e.Path, admin.Prefix), "-", "_")
	operation := object{
		"operationId": strings.ToLower(e.Method) + "_" + action,
		"summary":     strings.ToUpper(e.Help[:1]) + e.Help[1:],
		"parameters":  parameters,
		"responses":   responses,
	}
	if e.Method == http.MethodPut {
		operation["requestBody"] = object{"required": true, "content": jsonContent(object{"$ref": "#/components/schemas/" + bodyNames[e.Kind]})}
		responses["400"] = response("The value is not valid. Nothing was changed.", object{"anyOf": []object{schema(admin.Override{}), problems}})
	}
	return operation, errors.Join(errs...)
}

// bodyNames are the names of the schemas of bodies.
var bodyNames = map[override.Kind]string{
	override.KindOverride: "override_value", override.KindRule: "rule_value",
	override.KindSwitch: "switch_value", override.KindShadowMode: "shadow_mode_value",
}

// addBodies adds the schemas of the bodies. A test of limitsfile writes them.
func (d document) addBodies() error {
	text, err := os.ReadFile("../../descriptors/limitsfile/testdata/runtime-schemas.json")
	if err != nil {
		return err
	}
	var definitions object
	if err := json.Unmarshal(withComponentReferences(text), &definitions); err != nil {
		return err
	}
	maps.Copy(d.schemas(), definitions)
	return nil
}
