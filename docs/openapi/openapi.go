// Package openapi has the OpenAPI files of the HTTP listener and of the admin API. `make docs`
// writes them from the code.
package openapi

import (
	_ "embed"
	"net/http"
)

// CheckPath is the path of CheckHandler on the HTTP listener.
const CheckPath = "/v1/openapi.json"

//go:embed check.json
var check []byte

// CheckHandler answers with the file of the HTTP listener.
func CheckHandler(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(check) // an error means that the caller has gone
}
