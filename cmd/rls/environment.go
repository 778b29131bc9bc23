package main

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// environment reads settings from variables, each by the tags of its field:
//
//	env      name of the variable
//	default  its value where the variable is not set, or set to nothing
//	oneof    words that it can be, in any case
//	min max  bounds, over one that is excluded; for numbers and durations
//	pair     what is between name and value in a map; items are between commas
//	lenient  items of a map that are none don't count
//	secret   its value is never shown
type environment func(name string) string

// serviceLink is what Kubernetes sets NAME_PORT to in every pod beside a service
// called name.
var serviceLink = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// read sets all fields of s. It goes on after errors, so that all are told.
func (env environment) read(s any) (notes []string, errs []error) {
	v := reflect.ValueOf(s).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, text := f.Tag.Get("env"), ""
		if text = env(name); strings.HasSuffix(name, "_PORT") && serviceLink.MatchString(text) {
			service := strings.ToLower(strings.ReplaceAll(strings.TrimSuffix(name, "_PORT"), "_", "-"))
			notes = append(notes, fmt.Sprintf("%s=%s is not of use: Kubernetes sets it for the service %s. The default is used; enableServiceLinks: false in the pod's spec turns such variables off", name, text, service))
			text = ""
		}
		if text == "" {
			text = f.Tag.Get("default")
		}
		switch ok := parse(v.FieldByIndex(f.Index), text, f.Tag); {
		case ok:
		case f.Tag.Get("secret") != "":
			errs = append(errs, fmt.Errorf("%s is not %s", name, allowed(f.Type, f.Tag)))
		default:
			errs = append(errs, fmt.Errorf("%s=%q is not %s", name, text, allowed(f.Type, f.Tag)))
		}
	}
	return notes, errs
}

// parse sets v to what text says; false if it can't be that.
func parse(v reflect.Value, text string, tag reflect.StructTag) bool {
	switch v.Interface().(type) {
	case string:
		if words := strings.Fields(tag.Get("oneof")); len(words) > 0 && text != "" {
			i := slices.IndexFunc(words, func(word string) bool { return strings.EqualFold(word, text) })
			if i < 0 {
				return false
			}
			text = words[i]
		}
		v.SetString(text)
	case bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return false
		}
		v.SetBool(b)
	case map[string]string:
		m := map[string]string{}
		for item := range strings.SplitSeq(text, ",") {
			name, value, ok := strings.Cut(item, tag.Get("pair"))
			switch {
			case ok && name != "":
				m[strings.TrimSpace(name)] = strings.TrimSpace(value)
			case text != "" && tag.Get("lenient") == "":
				return false
			}
		}
		v.Set(reflect.ValueOf(m))
	default:
		n, err := number(v.Type(), text)
		if err != nil || !within(n, v.Type(), tag) {
			return false
		}
		v.Set(reflect.ValueOf(n).Convert(v.Type()))
	}
	return true
}

// number reads a duration or number of the type.
func number(t reflect.Type, text string) (any, error) {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return time.ParseDuration(text)
	case reflect.TypeFor[float64]():
		return strconv.ParseFloat(text, 64)
	}
	return strconv.ParseInt(text, 0, t.Bits())
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
		if len(words) == 0 {
			return "a text"
		}
		return "one of " + strings.Join(words, ", ")
	case reflect.TypeFor[bool]():
		return "true or false"
	case reflect.TypeFor[map[string]string]():
		return "a list such as name" + tag.Get("pair") + "value,name" + tag.Get("pair") + "value"
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
