// Command openapi writes the OpenAPI files in docs/openapi from the code. Its tests compare the
// files with the code and with the running handlers.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// files are the OpenAPI files by name.
var files = map[string]func() (document, error){
	"check.json": checkDocument,
	"admin.json": adminDocument,
}

func main() {
	dir := flag.String("dir", "../../docs/openapi", "directory of the files")
	flag.Parse()
	for name, newDocument := range files {
		d, err := newDocument()
		if err == nil {
			err = os.WriteFile(filepath.Join(*dir, name), d.encode(), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "openapi:", err)
			os.Exit(1)
		}
	}
}
