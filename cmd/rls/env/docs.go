package env

import (
	_ "embed"
	"io"
	"reflect"
	"strings"
	"text/template"
)

//go:embed settings.md.tmpl
var docsTemplate string

// WriteDocs writes docs/settings.md.
func WriteDocs(w io.Writer) error {
	functions := template.FuncMap{"list": func(variables, separator string) string {
		return "`" + strings.Join(strings.Fields(variables), "`"+separator+"`") + "`"
	}}
	same := mogrifierPrefix + "*"
	for _, f := range settings {
		if comparison, _ := Compare(f.Tag.Get("envconfig")); comparison == Same {
			same += " " + f.Tag.Get("envconfig")
		}
	}
	return template.Must(template.New("").Funcs(functions).Parse(docsTemplate)).Execute(w, struct {
		Settings        []reflect.StructField
		Changed, Unused []remark
		Same            string
	}{settings, changedSettings, unusedSettings, same})
}
