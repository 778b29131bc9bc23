package env

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Variable is a variable of the environment that has a meaning for the service.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"` // the value in effect; maskedSecret for a secret
	IsSet bool   `json:"is_set"`

	Comparison Comparison `json:"compared_with_ratelimit"`
	Note       string     `json:"note,omitempty"` // the difference, or the reason why the variable has no effect
	Meaning    string     `json:"meaning,omitempty"`
}

const maskedSecret = "(secret)"

// WithoutLogin returns text with a mask in place of a user and password before an @.
func WithoutLogin(text string) string {
	atSign := strings.LastIndex(text, "@")
	if atSign < 0 {
		return text
	}
	scheme := ""
	if schemeText, _, found := strings.Cut(text[:atSign], "://"); found {
		scheme = schemeText + "://"
	}
	return scheme + maskedSecret + text[atSign:]
}

// Variables returns all variables: the variables of Settings, and variables of the incumbent
// that have no effect. A variable without effect has a value only if it is set.
func (s *Settings) Variables() []Variable {
	var list []Variable
	for _, f := range settings {
		v := Variable{Name: f.Tag.Get("envconfig"), Meaning: f.Tag.Get("desc")}
		v.IsSet = os.Getenv(v.Name) != ""
		v.Comparison, v.Note = Compare(v.Name)
		v.Value = s.shownValue(reflect.ValueOf(s).Elem().FieldByIndex(f.Index), v.Name)
		if secret := f.Tag.Get("secret"); v.Value != "" && (secret == "true" || secret == "login" && strings.Contains(v.Value, "?")) {
			v.Value = maskedSecret // behind a ?, a URL can have a password too
		}
		v.Value = WithoutLogin(v.Value)
		list = append(list, v)
	}
	addVariable := func(name, value, meaning string) {
		v := Variable{Name: name, Value: value, IsSet: value != "", Meaning: meaning}
		v.Comparison, v.Note = Compare(name)
		list = append(list, v)
	}
	for _, name := range s.DogStatsdMogrifiers {
		for _, part := range mogrifierParts {
			variable := mogrifierPrefix + strings.ToUpper(name) + part
			addVariable(variable, os.Getenv(variable), "See USE_DOG_STATSD_MOGRIFIERS.")
		}
	}
	for _, remark := range unusedSettings {
		for name := range strings.FieldsSeq(remark.Variables) {
			addVariable(name, WithoutLogin(os.Getenv(name)), "")
		}
	}
	return list
}

// ChangedVariables returns the variables of Settings with a value that differs from their default.
func (s *Settings) ChangedVariables() []Variable {
	defaults := map[string]string{}
	for _, f := range settings {
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

// shownValue returns the value of a field in the form of its variable. For a list, it returns the text of the variable.
func (s *Settings) shownValue(field reflect.Value, name string) string {
	switch {
	case name == "BACKEND_TYPE":
		return s.Backend()
	case field.Kind() == reflect.Map || field.Kind() == reflect.Slice:
		return os.Getenv(name)
	}
	return fmt.Sprint(field.Interface())
}
