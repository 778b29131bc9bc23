package env

import (
	"fmt"
	"io"
	"reflect"
	"strings"
)

// WriteDocs writes the page: the settings, and those without effect.
func WriteDocs(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Settings

All are environment variables. This page is made from the code by ` + "`make docs`" + `.

| variable | default | meaning |
|---|---|---|
`)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		value := f.Tag.Get("default")
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Tag.Get("envconfig"), value, f.Tag.Get("desc"))
	}
	b.WriteString(`
Booleans are true or false (also 1, 0, t, f), durations carry a unit (` + "`50ms`, `10s`, `24h`" + `).
A variable that is set to nothing counts as not set. All values that can't be, or that
don't go together, and all files that can't be used are told at once, and the service
doesn't start.

In a pod, Kubernetes sets NAME_PORT to ` + "`tcp://…`" + ` for each service of the namespace, so
that one called grpc or debug would overwrite GRPC_PORT or DEBUG_PORT. Such values
are passed over with a warning; ` + "`enableServiceLinks: false`" + ` turns them off.

## Accepted without effect

Variables of envoyproxy/ratelimit that change nothing here. If one is set, a line of
the log says so.

| variable | why |
|---|---|
`)
	for _, u := range unused {
		fmt.Fprintf(&b, "| `%s` | %s |\n", u.name, u.reason)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
