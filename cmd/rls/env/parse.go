package env

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/kelseyhightower/envconfig"
)

// envconfig stops at its first error, so this file calls it for each field. Besides the
// tags of envconfig, envconfig and default, a field can have the tags
//
//	oneof          the allowed words, which match in any case
//	min above max  bounds of numbers and durations; max also bounds the bytes of a string
//	secret         messages never show the value
//	only           rls, if the incumbent does not have the variable
//	desc           the description in docs/settings.md

// serviceLink matches the values of variables that Kubernetes sets: NAME_PORT for each service NAME of the namespace.
var serviceLink = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// parse sets all fields of parsedSettings, and returns all errors. A variable that is empty or a service link counts as
// not set. parse removes such a variable before it calls envconfig, because envconfig would use the value.
func parse(parsedSettings *Settings) (warnings []Warning, errs []error) {
	settingsValue := reflect.ValueOf(parsedSettings).Elem()
	for _, field := range settings {
		name := field.Tag.Get("envconfig")
		text := os.Getenv(name)
		if strings.HasSuffix(name, "_PORT") && serviceLink.MatchString(text) {
			service := strings.ToLower(strings.ReplaceAll(strings.TrimSuffix(name, "_PORT"), "_", "-"))
			warnings = append(warnings, Warning{noEffect, name, fmt.Sprintf("Kubernetes set %s for the service %s; enableServiceLinks: false in the pod's spec turns such variables off", text, service)})
			text = ""
		}
		if text == "" {
			_ = os.Unsetenv(name)
		}
		wrapper := reflect.New(reflect.StructOf([]reflect.StructField{{Name: field.Name, Type: field.Type, Tag: field.Tag}}))
		value := wrapper.Elem().Field(0)
		switch err := envconfig.Process("", wrapper.Interface()); {
		case err == nil && isAllowed(value, field.Tag):
			settingsValue.FieldByIndex(field.Index).Set(value)
		case field.Tag.Get("secret") != "":
			errs = append(errs, fmt.Errorf("%s: want %s", name, allowedValues(field.Type, field.Tag)))
		default:
			errs = append(errs, fmt.Errorf("%s: got %q, want %s", name, text, allowedValues(field.Type, field.Tag)))
		}
	}
	return warnings, errs
}

// misspeltWarnings returns a warning for each variable whose name differs from the name of a setting by one or two
// characters. variables are texts NAME=VALUE, as os.Environ returns them.
func misspeltWarnings(variables []string) []Warning {
	const maxDistance, minLength = 2, 8 // shorter names, such as HOST, are like names of other programs
	var warnings []Warning
	for _, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		if comparison, _ := Compare(name); comparison != OnlyInRls || len(name) < minLength || value == "" {
			continue // a setting of the incumbent, too
		}
		nearestSetting, smallestDistance := "", maxDistance+1
		for _, f := range settings {
			setting := f.Tag.Get("envconfig")
			if d := levenshtein.ComputeDistance(name, setting); d < smallestDistance && len(setting) >= minLength {
				nearestSetting, smallestDistance = setting, d
			}
		}
		if nearestSetting != "" && nearestSetting != name {
			warnings = append(warnings, Warning{"unknown setting", name, "did you mean " + nearestSetting + "?"})
		}
	}
	return warnings
}

// isAllowed reports whether value is one of the words in its tag, or within the bounds in its tag. It replaces a
// word by the word in the tag, which can have another case.
func isAllowed(value reflect.Value, tag reflect.StructTag) bool {
	var number float64 // the value of a number, or the bytes of a string
	switch {
	case value.Kind() == reflect.String:
		number = float64(value.Len())
	case value.CanInt() || value.CanFloat():
		number = value.Convert(reflect.TypeFor[float64]()).Float()
	}
	isWithinBounds := number >= bound(tag.Get("min"), math.Inf(-1)) && number > bound(tag.Get("above"), math.Inf(-1)) && number <= bound(tag.Get("max"), math.Inf(1))
	words := strings.Fields(tag.Get("oneof"))
	if len(words) == 0 || value.String() == "" {
		return isWithinBounds
	}
	i := slices.IndexFunc(words, func(word string) bool { return strings.EqualFold(word, value.String()) })
	if i >= 0 {
		value.SetString(words[i])
	}
	return i >= 0
}

// bound parses a bound, which is a duration or a number. If text is empty, bound returns noBound.
func bound(text string, noBound float64) float64 {
	if text == "" {
		return noBound
	}
	if d, err := time.ParseDuration(text); err == nil {
		return float64(d)
	}
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

var valueKinds = map[reflect.Type]string{
	reflect.TypeFor[string]():        "a string",
	reflect.TypeFor[bool]():          "true or false",
	reflect.TypeFor[float64]():       "a number",
	reflect.TypeFor[time.Duration](): "a duration with a unit such as 50ms or 10s,",
	reflect.TypeFor[Timeout]():       "a duration with a unit such as 50ms or 10s, at least 1ms, or auto",
	reflect.TypeFor[headers]():       "a list such as name:value,name:value",
	reflect.TypeFor[names]():         "a list such as NAME,NAME",
	reflect.TypeFor[tags]():          "a list such as name:value,name:value",
	reflect.TypeFor[adminTokens]():   "a token, or a list such as name:token,name:token with different names",
}

// allowedValues describes the values that a setting allows, such as "a whole number from 0 to 65535".
func allowedValues(t reflect.Type, tag reflect.StructTag) string {
	kind := cmp.Or(valueKinds[t], "a whole number")
	minText, aboveText, maxText, words := tag.Get("min"), tag.Get("above"), tag.Get("max"), tag.Get("oneof")
	switch {
	case words != "":
		return "one of " + strings.Join(strings.Fields(words), ", ")
	case t.Kind() == reflect.String && maxText != "":
		return "at most " + maxText + " bytes"
	case aboveText != "":
		return kind + " above " + aboveText + ", at most " + maxText
	case minText != "" && maxText != "":
		return kind + " from " + minText + " to " + maxText
	case minText != "":
		return kind + " at least " + minText
	case maxText != "":
		return kind + " at most " + maxText
	}
	return strings.TrimSuffix(kind, ",")
}

// headers are HTTP headers, written name:value,name:value.
type headers map[string]string

func (h *headers) Decode(text string) error {
	*h = headers{}
	for item := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(item, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return errors.New("item is not name:value")
		}
		(*h)[name] = strings.TrimSpace(value)
	}
	return nil
}

// nodeMetadata has names and values, written name=value,name=value. Like the incumbent, it ignores other items.
type nodeMetadata map[string]string

func (m *nodeMetadata) Decode(text string) error { //nolint:unparam // the interface has it
	*m = nodeMetadata{}
	for item := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(item, "="); ok && name != "" {
			(*m)[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return nil
}

// adminTokens are tokens, written name:token,name:token. The key is the name. A token without a name has the name admin.
type adminTokens map[string]string

func (t *adminTokens) Decode(text string) error {
	*t = adminTokens{}
	for item := range strings.SplitSeq(text, ",") {
		name, token := splitToken(item)
		if _, exists := (*t)[name]; exists || name == "" || token == "" {
			return errors.New("item is not name:token with a new name")
		}
		(*t)[name] = token
	}
	return nil
}

// AdminToken returns the token that a client sends: the first of ADMIN_TOKEN, or an empty string without ADMIN_TOKEN.
func AdminToken() string {
	item, _, _ := strings.Cut(os.Getenv("ADMIN_TOKEN"), ",")
	_, token := splitToken(item)
	return token
}

func splitToken(item string) (name, token string) {
	name, token, hasName := strings.Cut(item, ":")
	if !hasName {
		name, token = "admin", item
	}
	return strings.TrimSpace(name), strings.TrimSpace(token)
}

// Timeout is a duration of at least a millisecond, or AutoTimeout.
type Timeout time.Duration

// AutoTimeout is the Timeout that follows a measurement, written auto.
const AutoTimeout Timeout = 0

// Decode implements envconfig.Decoder.
func (t *Timeout) Decode(text string) error {
	if strings.EqualFold(text, "auto") {
		*t = AutoTimeout
		return nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < time.Millisecond {
		err = fmt.Errorf("got %v, want at least 1ms", d)
	}
	*t = Timeout(d)
	return err
}

// String returns the text of t in messages.
func (t Timeout) String() string {
	if t == AutoTimeout {
		return "auto"
	}
	return time.Duration(t).String()
}
