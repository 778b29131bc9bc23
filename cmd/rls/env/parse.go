package env

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"
)

// Settings are read by envconfig, field by field, as it stops at its first error.
// Besides its tags (envconfig, default) a field can have
//
//	oneof         words that it can be, in any case
//	min over max  bounds, over one that is excluded; for numbers and durations,
//	              and max also for the bytes of a text
//	secret        its value is never shown

// serviceLink is what Kubernetes sets NAME_PORT to in every pod beside a service
// called name.
var serviceLink = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// readEnvironment sets all fields of s, a pointer to a struct. It goes on after
// errors, so that all are told. A variable that is set to nothing, or is a service
// link, is unset: envconfig would take it for a value.
func readEnvironment(s any) (notes []string, errs []error) {
	v := reflect.ValueOf(s).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		name := f.Tag.Get("envconfig")
		text := os.Getenv(name)
		if strings.HasSuffix(name, "_PORT") && serviceLink.MatchString(text) {
			service := strings.ToLower(strings.ReplaceAll(strings.TrimSuffix(name, "_PORT"), "_", "-"))
			notes = append(notes, fmt.Sprintf("%s=%s is not of use: Kubernetes sets it for the service %s. The default is used; enableServiceLinks: false in the pod's spec turns such variables off", name, text, service))
			text = ""
		}
		if text == "" {
			_ = os.Unsetenv(name)
		}
		// A struct of this field alone.
		one := reflect.New(reflect.StructOf([]reflect.StructField{{Name: f.Name, Type: f.Type, Tag: f.Tag}}))
		value := one.Elem().Field(0)
		switch err := envconfig.Process("", one.Interface()); {
		case err == nil && fits(value, f.Tag):
			v.FieldByIndex(f.Index).Set(value)
		case f.Tag.Get("secret") != "":
			errs = append(errs, fmt.Errorf("%s is not %s", name, allowed(f.Type, f.Tag)))
		default:
			errs = append(errs, fmt.Errorf("%s=%q is not %s", name, text, allowed(f.Type, f.Tag)))
		}
	}
	return notes, errs
}

// fits tells whether v is one of the field's words and inside its bounds. A word is
// set to the case it has in the tag.
func fits(v reflect.Value, tag reflect.StructTag) bool {
	if v.Kind() != reflect.String {
		return within(v.Interface(), v.Type(), tag)
	}
	if most, err := strconv.Atoi(tag.Get("max")); err == nil && v.Len() > most {
		return false
	}
	words := strings.Fields(tag.Get("oneof"))
	i := slices.IndexFunc(words, func(word string) bool { return strings.EqualFold(word, v.String()) })
	if i >= 0 {
		v.SetString(words[i])
	}
	return i >= 0 || len(words) == 0 || v.String() == ""
}

// headers are written name:value,name:value.
type headers map[string]string

// Decode implements envconfig.Decoder.
func (h *headers) Decode(text string) error {
	*h = headers{}
	for item := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(item, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return errors.New("an item is no name:value")
		}
		(*h)[name] = strings.TrimSpace(value)
	}
	return nil
}

// nodeMetadata is written name=value,name=value; items that aren't don't count, as
// with the incumbent.
type nodeMetadata map[string]string

// Decode implements envconfig.Decoder.
func (m *nodeMetadata) Decode(text string) error { //nolint:unparam // the interface has it
	*m = nodeMetadata{}
	for item := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(item, "="); ok && name != "" {
			(*m)[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return nil
}

// adminTokens are tokens by name, written name:token,name:token. One alone needs no
// name.
type adminTokens map[string]string

// defaultAdmin is the name of a token without one.
const defaultAdmin = "admin"

// Decode implements envconfig.Decoder.
func (t *adminTokens) Decode(text string) error {
	*t = adminTokens{}
	for item := range strings.SplitSeq(text, ",") {
		name, token, ok := strings.Cut(item, ":")
		if !ok {
			name, token = defaultAdmin, item
		}
		name, token = strings.TrimSpace(name), strings.TrimSpace(token)
		if _, known := (*t)[name]; known || name == "" || token == "" {
			return errors.New("an item is no name:token of its own")
		}
		(*t)[name] = token
	}
	return nil
}

// AdminToken returns the token that a client sends: the first of ADMIN_TOKEN, without
// its name. It is empty if ADMIN_TOKEN is.
func AdminToken() string {
	item, _, _ := strings.Cut(os.Getenv("ADMIN_TOKEN"), ",")
	if _, token, ok := strings.Cut(item, ":"); ok {
		item = token
	}
	return strings.TrimSpace(item)
}

// number reads a duration or number of the type.
func number(t reflect.Type, text string) (any, error) {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return time.ParseDuration(text)
	case reflect.TypeFor[float64]():
		return strconv.ParseFloat(text, 64)
	}
	return strconv.ParseInt(text, 0, 64)
}

// within tells whether n is inside the bounds of its tag.
func within(n any, t reflect.Type, tag reflect.StructTag) bool {
	float := func(n any) float64 { return reflect.ValueOf(n).Convert(reflect.TypeFor[float64]()).Float() }
	bound := func(key string, ok func(n, bound float64) bool) bool {
		text := tag.Get(key)
		if text == "" {
			return true
		}
		b, err := number(t, text)
		return err == nil && ok(float(n), float(b))
	}
	return bound("min", func(n, b float64) bool { return n >= b }) &&
		bound("over", func(n, b float64) bool { return n > b }) &&
		bound("max", func(n, b float64) bool { return n <= b })
}

// allowed says in words what a setting can be: "a whole number from 0 to 65535".
func allowed(t reflect.Type, tag reflect.StructTag) string {
	kind := "a whole number"
	switch t {
	case reflect.TypeFor[string]():
		words := strings.Fields(tag.Get("oneof"))
		if most := tag.Get("max"); most != "" {
			return "a text of up to " + most + " bytes"
		}
		if len(words) == 0 {
			return "a text"
		}
		return "one of " + strings.Join(words, ", ")
	case reflect.TypeFor[bool]():
		return "true or false"
	case reflect.TypeFor[headers]():
		return "a list such as name:value,name:value"
	case reflect.TypeFor[adminTokens]():
		return "a token, or a list such as name:token,name:token with different names"
	case reflect.TypeFor[time.Duration]():
		kind = "a duration with its unit, such as 50ms or 10s"
	case reflect.TypeFor[float64]():
		kind = "a number"
	}
	for _, b := range []struct{ key, word string }{{"min", " from "}, {"over", " over "}, {"max", " up to "}} {
		if bound := tag.Get(b.key); bound != "" {
			kind += b.word + bound
		}
	}
	return kind
}
