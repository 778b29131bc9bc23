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

// limitsObserver is a reload.Observer that reports changes of the limits in force.
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

func (o limitsObserver) LimitsChanged(c reload.LimitsChange) {
	o.Observer.LimitsChanged(c)
	text := "limits in force"
	switch {
	case c.First:
		text += ": " + live.Count(c.Rules, "rule") + " in " + live.Count(c.Domains, "domain")
	case c.Cause == "":
		text += " without an expired override"
	case c.Cause == SourceOverrides:
		text += " with other overrides"
	}
	counters := ""
	if len(c.Changed) > 0 {
		counters = map[bool]string{true: "new", false: "kept"}[c.HasNewCounters]
	}
	o.Add(timeline.Event{Time: c.Time, Kind: timeline.Reload, Text: text, Attrs: details(
		"source", c.Cause, "rules", c.Rules, "added", valuesText(&c, c.Added), "changed", valuesText(&c, c.Changed), "removed", valuesText(&c, c.Removed), "counters", counters,
	)})
}

// valuesText returns a line for each of the first ten paths, with the old and the new limits of the path.
func valuesText(c *reload.LimitsChange, paths []string) string {
	const maxPaths = 10
	text := strings.Join(c.Texts(paths)[:min(len(paths), maxPaths)], "\n")
	if omitted := len(paths) - maxPaths; omitted > 0 {
		text += fmt.Sprintf("\nand %d more", omitted)
	}
	return text
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
	e := timeline.Event{Kind: timeline.Override, Text: fmt.Sprintf("%d overrides changed", len(changes))}
	for _, action := range []reload.Action{reload.OverrideSet, reload.OverrideChanged, reload.OverrideDeleted, reload.OverrideLost, reload.OverrideExpired, reload.OverrideRejected} {
		if counts[action] > 0 {
			e.Attrs = append(e.Attrs, details(string(action), counts[action])...)
		}
	}
	o.Add(e)
}

func overrideEvent(change reload.OverrideChange) timeline.Event {
	s := &change.State
	endText := ""
	if !s.ExpiresAt.IsZero() {
		endText = s.ExpiresAt.UTC().Format(time.RFC3339)
	}
	e := timeline.Event{
		Kind:  timeline.Override,
		Text:  strings.ReplaceAll(string(s.Kind), "_", " ") + " " + string(change.Action) + ": " + cmp.Or(s.Target, "all"),
		Attrs: details("set by", s.Author, "reason", s.Reason, "until", endText),
	}
	var limits []timeline.Attr
	switch change.Action {
	case reload.OverrideDeleted, reload.OverrideLost, reload.OverrideExpired:
		limits = details("limits", s.BaseLimits)
	case reload.OverrideRejected:
		e.Kind, e.Failed = timeline.Refusal, true
		limits = details("problem", s.Problem, "limits", s.Limits, "without", s.BaseLimits)
	default:
		limits = details("limits", s.Limits, "without", s.BaseLimits)
	}
	e.Attrs = append(e.Attrs, limits...)
	return e
}

// auditDirectWrites logs each change that somebody has written to Redis without the API. The value of such a change has
// no author, because only the API adds the name of the caller. Each replica logs the write.
func (o limitsObserver) auditDirectWrites(changes []reload.OverrideChange) {
	writes := []reload.Action{reload.OverrideSet, reload.OverrideChanged, reload.OverrideRejected}
	for _, change := range changes {
		s := &change.State
		if !slices.Contains(writes, change.Action) || s.Author != "" {
			continue
		}
		const maxBytes = 1000
		o.Log.Warn("audit", "action", "direct write", "by", "unknown", "outcome", string(change.Action), "kind", string(s.Kind),
			"target", s.Target, "new", s.Value[:min(len(s.Value), maxBytes)], "limits_before", s.BaseLimits, "limits", s.Limits)
	}
}

func (o limitsObserver) SourceState(source string, err error) {
	o.Observer.SourceState(source, err)
	e, note := timeline.Event{Kind: timeline.Source, Repeats: true, Text: "source of limits in use: " + source}, ""
	if err != nil {
		e.Failed, e.Text, e.Attrs = true, "source of limits lost: "+source, details("error", err)
		note = fmt.Sprintf("unreadable since %s; the last overrides stay in force", time.Now().UTC().Format(time.RFC3339))
	}
	o.Add(e)
	if source == SourceOverrides {
		o.Health.Note(source, note)
	}
}
