package main

import (
	"errors"

	"github.com/seed-81f232ab/rls/docs/openapi"
	"github.com/seed-81f232ab/rls/service/check"
)

// checkDocument returns the document of the HTTP listener.
func checkDocument() (document, error) {
	d := newDocument("rls",
		"Checks of rate limits over HTTP, for programs without gRPC. docs/client.md explains them.",
		object{"url": "http://localhost:8080", "description": "the HTTP listener (HOST, PORT)"})
	request, requestErr := d.schemaOf(check.Request{}, true)
	answers, answersErr := d.schemaOf(check.Response{}, false)
	refusal, refusalErr := d.schemaOf(check.Refusal{}, false)
	d.addOperation("POST", check.Path, object{
		"operationId": "check",
		"summary":     "Decides several independent checks, and charges their hits",
		"requestBody": object{"required": true, "content": jsonContent(request)},
		"responses": object{
			"200": response("The answer to each check. Also a denied check has the status 200.", answers),
			"400": response("The body is not valid. Nothing was charged.", refusal),
			"403": response("The request comes from a page of another site.", refusal),
			"405": response("The method is not POST.", refusal),
			"413": response("The body exceeds GRPC_MAX_MESSAGE_BYTES.", refusal),
			"503": response("Too many large bodies are being read. Try again.", refusal),
		},
	})
	text := func(description string) object {
		return object{"description": description, "content": object{"text/plain": object{"schema": object{"type": "string"}}}}
	}
	d.addOperation("GET", "/healthcheck", object{
		"operationId": "health",
		"summary":     "Reports whether the replica takes calls",
		"responses": object{
			"200": text("OK. A line for each note follows."),
			"500": text("A line for each fault. A replica that drains has the fault server."),
		},
	})
	d.addOperation("GET", openapi.CheckPath, object{
		"operationId": "openapi",
		"summary":     "Returns this document",
		"responses":   object{"200": response("This document.", object{"type": "object"})},
	})
	return d, errors.Join(requestErr, answersErr, refusalErr)
}
