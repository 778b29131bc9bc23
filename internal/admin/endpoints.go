package admin

import (
	"net/http"
	"slices"

	"github.com/seed-81f232ab/rls/descriptors/override"
)

// endpoint is a method of a path.
type endpoint struct {
	method, path, help string
	params             []string // of the query
	serve              func(h *handler, c *call) answer

	kind          override.Kind // of the fields
	isForCounters bool          // needs no Overrides
	hasTarget     bool          // a caller needs access to the domain of the target

	answers []any // values of the types of successful answers
}

// kindEndpoint is the path of a kind of fields.
type kindEndpoint struct {
	kind                         override.Kind
	path                         string
	params                       []string
	getHelp, putHelp, deleteHelp string
}

// getAnswers returns values of the types of the answers to a GET.
func (k *kindEndpoint) getAnswers() []any {
	if k.kind == override.KindShadowMode {
		return []any{Override{}}
	}
	return []any{List{}, Override{}}
}

// kindEndpoints are the paths of the kinds of fields, with the help of their methods.
var kindEndpoints = []kindEndpoint{
	{
		override.KindOverride, Prefix + "overrides",
		[]string{"target"},
		"returns all overrides, or the override of ?target=",
		"overrides the limits of ?target= by the JSON object in the body", "deletes the override of ?target=",
	},
	{
		override.KindRule, Prefix + "rules",
		[]string{"target"},
		"returns all rules of run time, or the rule of ?target=",
		"creates a rule for ?target= with the fields of a descriptor in the body", "deletes the rule of ?target=",
	},
	{
		override.KindSwitch, Prefix + "switches",
		[]string{"target"},
		"returns all switches, or the switch of ?target=",
		"turns off the limits of ?target=: a rule, a domain, or all limits if the target is empty", "puts the limits of ?target= in force again",
	},
	{
		override.KindShadowMode, Prefix + "shadow-mode", nil, "returns the switch that replaces SHADOW_MODE",
		`replaces SHADOW_MODE by the body, such as {"shadow_mode": true}`, "restores SHADOW_MODE",
	},
}

var endpoints = func() []endpoint {
	all := []endpoint{
		{method: "GET", path: Prefix + "limits", help: "returns all overrides, rules and switches", serve: (*handler).getAll, answers: []any{List{}}},
		{method: "GET", path: Prefix + "status", help: "returns the replicas, the version of each, and the switches", serve: (*handler).getStatus, answers: []any{Status{}}},
		{method: "GET", path: Prefix + "history", help: "returns the last changes, the newest first; ?target= of one target, ?count=20", params: []string{"target", "count"}, serve: (*handler).getHistory, answers: []any{History{}}},
		{method: "POST", path: Prefix + "rollback", help: "restores the limits before the last change, or those of ?version=; ?dry_run=true changes nothing, ?force=true replaces values that the history does not have", params: []string{"version", "dry_run", "force", "reason"}, serve: (*handler).rollBack, kind: override.KindOverride, answers: []any{Rollback{}}},
		{method: "GET", path: Prefix + "counters", help: "returns the counters of requests with the keys and values of ?target=", params: []string{"target"}, serve: (*handler).getCounter, kind: override.KindOverride, isForCounters: true, hasTarget: true, answers: []any{Counter{}}},
		{method: "DELETE", path: Prefix + "counters", help: "resets these counters; ?prefix= in place of ?target= resets all counters that start with its entries, at most ?max=10000, and ?dry_run=true only counts them", params: []string{"target", "prefix", "max", "dry_run"}, serve: (*handler).resetCounters, kind: override.KindOverride, isForCounters: true, hasTarget: true, answers: []any{Reset{}, ResetByPrefix{}}},
	}
	for i := range kindEndpoints {
		k := &kindEndpoints[i]
		all = append(all,
			endpoint{method: "GET", path: k.path, help: k.getHelp, params: k.params, serve: (*handler).getFields, kind: k.kind, hasTarget: true, answers: k.getAnswers()},
			endpoint{method: "PUT", path: k.path, help: k.putHelp + "; ?dry_run=true changes nothing", params: append(k.params, "dry_run"), serve: (*handler).putField, kind: k.kind, hasTarget: true, answers: []any{Override{}}},
			endpoint{method: "DELETE", path: k.path, help: k.deleteHelp, params: append(k.params, "reason"), serve: (*handler).deleteField, kind: k.kind, hasTarget: true, answers: []any{Override{}}},
		)
	}
	return all
}()

// Endpoint describes a method of a path, for the OpenAPI file of the API.
type Endpoint struct {
	Method, Path, Help string
	Params             []Param

	// Kind is the kind of the value in the body of a PUT.
	Kind override.Kind

	// IsConditional reports that If-Match and If-None-Match apply. A conflict is then a Conflict.
	IsConditional bool

	// Answers are values of the types of successful answers. Every other answer is a Problems,
	// or an Override if its value is invalid.
	Answers []any
}

// Param is a parameter of the query.
type Param struct {
	Name, Help string
	Type       string // of JSON Schema
	Required   bool
}

// paramHelp describes the parameters.
var paramHelp = map[string]Param{
	"target":  {Help: "DOMAIN|KEY=VALUE|KEY=VALUE…, the name of a descriptor", Type: "string"},
	"prefix":  {Help: "DOMAIN|KEY=VALUE…, the start of the names of counters", Type: "string"},
	"max":     {Help: "largest number of counters to reset", Type: "integer"},
	"dry_run": {Help: "true changes nothing, and answers what a change would do", Type: "boolean"},
	"reason":  {Help: "why the caller makes the change, for the history", Type: "string"},
	"count":   {Help: "number of changes", Type: "integer"},
	"version": {Help: "version whose limits come into force again; by default the version before the last change", Type: "integer"},
	"force":   {Help: "true replaces values that the history does not have", Type: "boolean"},
}

// Endpoints returns all methods of all paths.
func Endpoints() []Endpoint {
	all := make([]Endpoint, len(endpoints))
	for i := range endpoints {
		e := &endpoints[i]
		isField := slices.ContainsFunc(kindEndpoints, func(k kindEndpoint) bool { return k.path == e.path })
		all[i] = Endpoint{Method: e.method, Path: e.path, Help: e.help, Answers: e.answers, IsConditional: isField && e.method != http.MethodGet}
		if isField && e.method == http.MethodPut {
			all[i].Kind = e.kind
		}
		for _, name := range e.params {
			p := paramHelp[name]
			p.Name, p.Required = name, name == "target" && (e.method != http.MethodGet || e.isForCounters) && !slices.Contains(e.params, "prefix")
			all[i].Params = append(all[i].Params, p)
		}
	}
	return all
}
