package admin

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Endpoint is a method of a path.
type Endpoint struct {
	Method, Path, Help string
	Params             []Param

	Kind          override.Kind // the kind of the fields
	IsConditional bool          // If-Match and If-None-Match apply; the answer to a conflict is then a Conflict

	// Answers has an empty value of each type of a successful answer. Every other answer is a Problems, or an Override if
	// the value is invalid.
	Answers []any

	serve         func(h *handler, c *call) answer
	isForCounters bool // the endpoint works without Options.Overrides
	hasTarget     bool // the caller must have the right to use the domain of the target
}

// Param is a parameter of the query.
type Param struct {
	Name, Help string
	Type       string // a type of JSON Schema, such as integer
	Required   bool

	want string                          // the valid values, such as "true or false"
	read func(c *call, text string) bool // sets the parameter of a call, and reports whether text is valid; nil if all texts are valid
}

var (
	targetParam         = Param{Name: "target", Type: "string", Help: "DOMAIN|KEY=VALUE|KEY=VALUE…, the name of a descriptor"}
	requiredTargetParam = Param{Name: targetParam.Name, Type: targetParam.Type, Help: targetParam.Help, Required: true}
	prefixParam         = Param{Name: "prefix", Type: "string", Help: "DOMAIN|KEY=VALUE…, the start of the names of counters"}
	maxParam            = numberParam("max", "largest number of counters to reset", fmt.Sprintf("a number from 1 to %d", MaxCounters),
		1, MaxCounters, func(c *call) *int64 { return &c.maxCounters })
	countParam = numberParam("count", "number of changes", fmt.Sprintf("a number from 1 to %d", changes.MaxHistory),
		1, changes.MaxHistory, func(c *call) *int64 { return &c.count })
	versionParam = numberParam("version", "version whose limits come into force again; by default the version before the last change",
		"a number that rls limits history shows, such as 3", 0, math.MaxInt64, func(c *call) *int64 { return &c.version })
	dryRunParam  = flagParam("dry_run", "true changes nothing, and answers what a change would do", func(c *call) *bool { return &c.isDryRun })
	forceParam   = flagParam("force", "true replaces values that the history does not have", func(c *call) *bool { return &c.isForced })
	replaceParam = flagParam("replace", "true replaces a value that ends later or never, also by a value with an end", func(c *call) *bool { return &c.isForced })
	reasonParam  = Param{
		Name: "reason", Type: "string", Help: "why the caller makes the change, for the history",
		want: fmt.Sprintf("at most %d bytes", limitsfile.MaxReasonBytes),
		read: func(c *call, text string) bool { c.reason = text; return len(text) <= limitsfile.MaxReasonBytes },
	}
)

func numberParam(name, help, want string, minValue, maxValue int64, valueOf func(*call) *int64) Param {
	return Param{Name: name, Type: "integer", Help: help, want: want, read: func(c *call, text string) bool {
		n, err := strconv.ParseInt(text, 10, 64)
		*valueOf(c) = n
		return err == nil && minValue <= n && n <= maxValue
	}}
}

func flagParam(name, help string, valueOf func(*call) *bool) Param {
	return Param{Name: name, Type: "boolean", Help: help, want: "true or false", read: func(c *call, text string) bool {
		isSet, err := strconv.ParseBool(text)
		*valueOf(c) = isSet
		return err == nil
	}}
}

var endpoints = slices.Concat(
	[]Endpoint{
		newEndpoint("GET", "limits", "returns all overrides, rules and switches", func(h *handler, c *call) answer { return okAnswer(h.listFields(c)) }, nil, List{}),
		newEndpoint("GET", "status", "returns the replicas, the version of each, and the switches", (*handler).getStatus, nil, Status{}),
		newEndpoint("GET", "history", "returns the last changes, the newest first; ?target= of one target, ?count=20",
			(*handler).getHistory, []Param{targetParam, countParam}, History{}),
		newEndpoint("POST", "rollback", "restores the limits before the last change, or the limits of ?version=; ?dry_run=true changes nothing, ?force=true replaces values that the history does not have",
			(*handler).rollBack, []Param{versionParam, dryRunParam, forceParam, reasonParam}, Rollback{}),
		newEndpoint("GET", "counters", "returns the counters of requests with the keys and values of ?target=",
			(*handler).getCounter, []Param{requiredTargetParam}, Counter{}).asCounterEndpoint(),
		newEndpoint("DELETE", "counters", "resets the counters of requests with the keys and values of ?target=; ?prefix= in place of ?target= resets all counters that start with its entries, at most ?max=10000, and ?dry_run=true only counts these counters",
			(*handler).resetCounters, []Param{targetParam, prefixParam, maxParam, dryRunParam}, Reset{}, ResetByPrefix{}).asCounterEndpoint(),
	},
	fieldEndpoints(override.KindOverride, "overrides", true,
		"returns all overrides, or the override of ?target=",
		"overrides the limits of ?target= by the JSON object in the body", "deletes the override of ?target="),
	fieldEndpoints(override.KindRule, "rules", true,
		"returns all rules of run time, or the rule of ?target=",
		"creates a rule for ?target= with the fields of a descriptor in the body", "deletes the rule of ?target="),
	fieldEndpoints(override.KindSwitch, "switches", true,
		"returns all switches, or the switch of ?target=",
		"turns off the limits of ?target=: a rule, a domain, or all limits if the target is empty", "puts the limits of ?target= in force again"),
	fieldEndpoints(override.KindShadowMode, "shadow-mode", false,
		"returns the switch that replaces SHADOW_MODE",
		`replaces SHADOW_MODE by the body, such as {"shadow_mode": true}`, "restores SHADOW_MODE"),
)

func newEndpoint(method, path, help string, serve func(*handler, *call) answer, params []Param, answers ...any) Endpoint {
	return Endpoint{Method: method, Path: Prefix + path, Help: help, Kind: override.KindOverride, serve: serve, Params: params, Answers: answers}
}

func (e Endpoint) asCounterEndpoint() Endpoint {
	e.isForCounters, e.hasTarget = true, true
	return e
}

// fieldEndpoints returns the endpoints for one kind of fields, such as overrides. If hasTargets is false, the kind has
// a single field.
func fieldEndpoints(kind override.Kind, path string, hasTargets bool, getHelp, putHelp, deleteHelp string) []Endpoint {
	getParams, getAnswers := []Param{targetParam}, []any{List{}, Override{}}
	putParams, deleteParams := []Param{requiredTargetParam, dryRunParam, replaceParam}, []Param{requiredTargetParam, reasonParam}
	if !hasTargets {
		getParams, putParams, deleteParams, getAnswers = nil, putParams[1:], deleteParams[1:], getAnswers[1:]
	}
	kindEndpoints := []Endpoint{
		newEndpoint("GET", path, getHelp, (*handler).getFields, getParams, getAnswers...),
		newEndpoint("PUT", path, putHelp+"; ?dry_run=true changes nothing", (*handler).putField, putParams, Override{}),
		newEndpoint("DELETE", path, deleteHelp, (*handler).deleteField, deleteParams, Override{}),
	}
	for i := range kindEndpoints {
		kindEndpoints[i].Kind, kindEndpoints[i].hasTarget, kindEndpoints[i].IsConditional = kind, true, i > 0
	}
	return kindEndpoints
}

// Endpoints returns all methods of all paths.
func Endpoints() []Endpoint { return slices.Clone(endpoints) }

// readParams reads the parameters and the conditions of a call. It rejects unknown parameters, so that a call with a
// misspelt parameter changes nothing.
func (c *call) readParams(endpoint *Endpoint) (err error) {
	if c.query, err = url.ParseQuery(c.URL.RawQuery); err != nil {
		return fmt.Errorf("invalid query: %w", err)
	}
	names := make([]string, len(endpoint.Params))
	for i, p := range endpoint.Params {
		names[i] = p.Name
		switch values := c.query[p.Name]; {
		case len(values) == 0 && p.Required:
			return fmt.Errorf("parameter %s is missing; want %s", p.Name, p.Help)
		case len(values) > 1:
			return fmt.Errorf("parameter %s is given more than once", p.Name)
		case len(values) == 1 && p.read != nil && !p.read(c, values[0]):
			return fmt.Errorf("%s: got %q, want %s", p.Name, truncate(values[0]), p.want)
		}
	}
	for name := range c.query {
		if !slices.Contains(names, name) {
			return fmt.Errorf("unknown parameter %q; want %s", truncate(name), strings.Join(names, ", "))
		}
	}
	if endpoint.IsConditional {
		err = c.readCondition()
	}
	return err
}
