// Package schema has the JSON Schemas of limits files and of test files. `make docs` writes them from the code.
package schema

import _ "embed"

// Limits is the JSON Schema of limits files.
//
//go:embed limits.json
var Limits string

// Tests is the JSON Schema of test files.
//
//go:embed tests.json
var Tests string
