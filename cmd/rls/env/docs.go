package env

import (
	"fmt"
	"io"
	"reflect"
	"strings"
)

// WriteDocs writes docs/settings.md.
func WriteDocs(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Settings

All settings are environment variables. ` + "`make docs`" + ` writes this page from the code.

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
## Values

- A boolean is true or false, also 1 or 0, t or f.
- A duration has a unit: ` + "`50ms`, `10s`, `24h`" + `.
- An empty variable counts as not set.

At start the service checks all settings, and all files that settings name. If there are
problems, it logs all of them and exits with code 1.

In a pod, Kubernetes sets NAME_PORT to ` + "`tcp://…`" + ` for each service of the namespace. A
service named grpc would overwrite GRPC_PORT, and a service named debug would overwrite
DEBUG_PORT. The service ignores such a value and logs a warning. To turn these variables
off, set ` + "`enableServiceLinks: false`" + ` in the pod's spec.

## Variables of envoyproxy/ratelimit

` + "`rls doctor --settings`" + ` prints for each variable its value in the environment of the command, and
what the variable does here. With ` + "`--json`" + `, the output is for programs. Secrets are not shown.

These variables have another effect or another default than in envoyproxy/ratelimit:

| variables | difference |
|---|---|
`)
	for _, s := range changedSettings {
		fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(s.names, " ", "` `"), s.difference)
	}
	b.WriteString(`
These variables of envoyproxy/ratelimit change nothing. If such a variable is set, the
service logs a warning with the reason.

| variables | reason |
|---|---|
`)
	for _, s := range unusedSettings {
		fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(s.names, " ", "` `"), s.reason)
	}
	b.WriteString("\nThese variables mean the same: `" + strings.Join(strings.Fields(sameSettings), "`, `") + "`.\n")
	_, err := io.WriteString(w, b.String())
	return err
}
