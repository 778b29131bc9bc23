package events

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/internal/source/reload"
)

// The names of sources of limits.
const (
	SourceFile      = "file"
	SourceXDS       = "xds"
	SourceOverrides = "overrides"
)

type limitsObserver struct {
	reload.Observer // reports to the metrics
	*Events
	needsDomain bool
}

// Limits returns the observer of a Reloader. With needsDomain, the process is unhealthy while no domain is loaded.
func (e *Events) Limits(needsDomain bool, sources ...string) reload.Observer {
	o := limitsObserver{e.Metrics.Reload(sources...), e, needsDomain}
	o.setHealth(0)
	return o
}

func (o limitsObserver) setHealth(domains int) {
	if o.needsDomain {
		o.Health.Set("config", domains > 0, "no limits loaded")
	}
}

func (o limitsObserver) LimitsLoaded(domains int) {
	o.Observer.LimitsLoaded(domains)
	o.setHealth(domains)
	o.Health.Set("xds", true, "")
}

func (o limitsObserver) LimitsChanged(change reload.LimitsChange) {
	o.Observer.LimitsChanged(change)
	text := "limits in force"
	switch {
	case change.First:
		text += ": " + live.Count(change.Rules, "rule") + " in " + live.Count(change.Domains, "domain")
	case change.Cause == "":
		text += " without an expired override"
	case change.Cause == SourceOverrides:
		text += " with other overrides"
	}
	counters := ""
	if len(change.Changed) > 0 {
		counters = map[bool]string{true: "new", false: "kept"}[change.HasNewCounters]
	}
	o.Add(timeline.Event{Time: change.Time, Kind: timeline.Reload, Text: text, Attrs: details(
		"source", change.Cause, "rules", change.Rules, "added", change.Added.Join("\n"), "changed", change.Changed.Join("\n"), "removed", change.Removed.Join("\n"), "counters", counters,
	)})
}

func (o limitsObserver) LimitsRejected(err error) {
	o.Observer.LimitsRejected(err)
	o.Add(timeline.Event{Kind: timeline.Refusal, Failed: true, Text: "limits rejected", Attrs: details("problem", err)})
}

// OverridesChanged implements reload.Observer. If more than ten overrides change at once, it adds a single event.
func (o limitsObserver) OverridesChanged(changes []reload.OverrideChange) {
	o.Observer.OverridesChanged(changes)
	o.auditDirectWrites(changes)
	const maxEvents = 10
	if len(changes) <= maxEvents {
		for _, change := range changes {
			o.Add(overrideEvent(change))
		}
		return
	}
	counts := map[reload.Action]int{}
	for _, change := range changes {
		counts[change.Action]++
	}
	event := timeline.Event{Kind: timeline.Override, Text: fmt.Sprintf("%d overrides changed", len(changes))}
	for _, action := range []reload.Action{reload.OverrideSet, reload.OverrideChanged, reload.OverrideDeleted, reload.OverrideLost, reload.OverrideExpired, reload.OverrideRejected} {
		if counts[action] > 0 {
			event.Attrs = append(event.Attrs, details(string(action), counts[action])...)
		}
	}
	o.Add(event)
}

func overrideEvent(change reload.OverrideChange) timeline.Event {
	state := &change.State
	endText := ""
	if !state.ExpiresAt.IsZero() {
		endText = state.ExpiresAt.UTC().Format(time.RFC3339)
	}
	event := timeline.Event{
		Kind: timeline.Override,
		Text: strings.ReplaceAll(string(state.Kind), "_", " ") + " " + string(change.Action) + ": " + cmp.Or(state.Target, "all"),
	}
	author := "set by"
	var limits []timeline.Attr
	switch change.Action {
	case reload.OverrideDeleted, reload.OverrideLost, reload.OverrideExpired:
		author, limits = "was set by", details("limits", state.BaseLimits)
	case reload.OverrideRejected:
		event.Kind, event.Failed = timeline.Refusal, true
		limits = details("problem", state.Problem, "limits", state.Limits, "without", state.BaseLimits)
	default:
		limits = details("limits", state.Limits, "without", state.BaseLimits)
	}
	event.Attrs = append(details(author, state.Author, "reason", state.Reason, "until", endText), limits...)
	return event
}

// auditDirectWrites logs each change that somebody has written to Redis without the API. The value of such a change has
// no author, because only the API adds the name of the caller. Each replica logs the write.
func (o limitsObserver) auditDirectWrites(changes []reload.OverrideChange) {
	writes := []reload.Action{reload.OverrideSet, reload.OverrideChanged, reload.OverrideRejected}
	for _, change := range changes {
		state := &change.State
		if !slices.Contains(writes, change.Action) || state.Author != "" {
			continue
		}
		const maxBytes = 1000
		o.Log.Warn("audit", "action", "direct write", "by", "unknown", "outcome", string(change.Action), "kind", string(state.Kind),
			"target", state.Target, "new", state.Value[:min(len(state.Value), maxBytes)], "limits_before", state.BaseLimits, "limits", state.Limits)
	}
}

func (o limitsObserver) SourceState(source string, err error) {
	o.Observer.SourceState(source, err)
	event, note := timeline.Event{Kind: timeline.Source, Repeats: true, Text: "source of limits in use: " + source}, ""
	if err != nil {
		event.Failed, event.Text, event.Attrs = true, "source of limits lost: "+source, details("error", err)
		note = fmt.Sprintf("unreadable since %s; the last overrides stay in force", time.Now().UTC().Format(time.RFC3339))
	}
	o.Add(event)
	if source == SourceOverrides {
		o.Health.Note(source, note)
	}
}
