package env

import (
	"fmt"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Variable is a variable of the environment that has a meaning for the service.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"` // in effect; a secret is masked
	IsSet bool   `json:"is_set"`

	Comparison Comparison `json:"compared_with_ratelimit"`
	Note       string     `json:"note,omitempty"` // the difference, or why there is no effect
	Meaning    string     `json:"meaning,omitempty"`
}

// maskedSecret is shown in place of a secret.
const maskedSecret = "(secret)"

// WithoutLogin returns text with a mask in place of a user and password before an @.
func WithoutLogin(text string) string {
	at := strings.LastIndex(text, "@")
	if at < 0 {
		return text
	}
	scheme, _, found := strings.Cut(text[:at], "://")
	if found {
		scheme += "://"
	} else {
		scheme = ""
	}
	return scheme + maskedSecret + text[at:]
}

// Variables returns all variables: those of Settings, and variables of the incumbent
// that have no effect. Variables without effect have a value only if they are set.
func (s *Settings) Variables() []Variable {
	var list []Variable
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		v := Variable{Name: f.Tag.Get("envconfig"), Meaning: f.Tag.Get("desc")}
		v.IsSet = os.Getenv(v.Name) != ""
		v.Comparison, v.Note = Compare(v.Name)
		v.Value = s.shownValue(reflect.ValueOf(s).Elem().FieldByIndex(f.Index), v.Name)
		if v.Value != "" && f.Tag.Get("secret") != "" {
			v.Value = maskedSecret
		}
		v.Value = WithoutLogin(v.Value)
		list = append(list, v)
	}
	for _, name := range s.DogStatsdMogrifiers {
		for _, part := range mogrifierParts {
			v := Variable{Name: mogrifierPrefix + strings.ToUpper(name) + part, Meaning: "See USE_DOG_STATSD_MOGRIFIERS."}
			v.Value = os.Getenv(v.Name)
			v.IsSet = v.Value != ""
			v.Comparison, v.Note = Compare(v.Name)
			list = append(list, v)
		}
	}
	return append(list, unusedVariables()...)
}

// ChangedVariables returns the variables of Settings that are set to another value than
// their default.
func (s *Settings) ChangedVariables() []Variable {
	defaults := map[string]string{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		text := f.Tag.Get("default")
		if d, err := time.ParseDuration(text); err == nil && (f.Type == reflect.TypeFor[time.Duration]() || f.Type == reflect.TypeFor[Timeout]()) {
			text = d.String()
		}
		defaults[f.Tag.Get("envconfig")] = text
	}
	return slices.DeleteFunc(s.Variables(), func(v Variable) bool {
		return !v.IsSet || v.Comparison == NoEffect || v.Value == defaults[v.Name]
	})
}

// unusedVariables returns the variables of the incumbent that have no effect.
func unusedVariables() []Variable {
	var list []Variable
	for _, s := range unusedSettings {
		for pattern := range strings.FieldsSeq(s.names) {
			for _, name := range expandPattern(pattern) {
				v := Variable{Name: name, Value: WithoutLogin(os.Getenv(name)), Comparison: NoEffect, Note: s.reason}
				if v.IsSet = v.Value != ""; v.IsSet && strings.Contains(name, "KEY") {
					v.Value = maskedSecret
				}
				list = append(list, v)
			}
		}
	}
	return list
}

// expandPattern returns the set variables that match a pattern, or the pattern without any.
func expandPattern(pattern string) []string {
	var names []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if matches, _ := path.Match(pattern, name); matches {
			names = append(names, name)
		}
	}
	if names == nil {
		names = []string{pattern}
	}
	slices.Sort(names)
	return names
}

// shownValue returns the value of a field as its variable would have it. A list is shown as
// it is in the environment.
func (s *Settings) shownValue(field reflect.Value, name string) string {
	switch {
	case name == "BACKEND_TYPE":
		return s.Backend()
	case field.Kind() == reflect.Map || field.Kind() == reflect.Slice:
		return os.Getenv(name)
	}
	return fmt.Sprint(field.Interface())
}
