package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/internal/source/reload"
)

// maxTimelineEvents is the number of events that the timeline keeps.
const maxTimelineEvents = 200

// changes records the changes of this process in the timeline.
type changes struct{ *timeline.Timeline }

func newChanges() changes { return changes{timeline.New(maxTimelineEvents)} }

// attr returns a detail of an event, or none if value is empty.
func attr(name, value string) []timeline.Attr {
	if value == "" {
		return nil
	}
	return []timeline.Attr{{Name: name, Value: value}}
}

// serviceStarted records the start of the process.
func (c changes) serviceStarted(s *env.Settings) {
	c.Add(timeline.Event{Kind: timeline.Start, Text: "service started", Attrs: []timeline.Attr{
		{Name: "version", Value: thisBuild().Version}, {Name: "backend", Value: s.Backend()},
	}})
}

// DrainStarted implements server.Observer.
func (c changes) DrainStarted(callsInFlight int64) {
	c.Add(timeline.Event{Kind: timeline.Drain, Text: "drain started", Attrs: attr("calls in flight", strconv.FormatInt(callsInFlight, 10))})
}

// DrainFinished implements server.Observer.
func (c changes) DrainFinished(cut int64) {
	c.Add(timeline.Event{Kind: timeline.Drain, Failed: cut > 0, Text: "drain finished", Attrs: attr("calls cut", strconv.FormatInt(cut, 10))})
}

// TLSReloaded implements server.Observer.
func (c changes) TLSReloaded(listener, subject string, err error) {
	e := timeline.Event{Kind: timeline.Certificate, Text: "TLS files reloaded: " + listener, Attrs: attr("subject", subject)}
	if err != nil {
		e.Failed, e.Text, e.Attrs = true, "TLS files rejected: "+listener, attr("error", err.Error())
	}
	c.Add(e)
}

// callersReloaded records that the file of the callers has changed.
func (c changes) callersReloaded(file string, err error) {
	e := timeline.Event{Kind: timeline.Certificate, Text: "callers reloaded", Attrs: attr("file", file)}
	if err != nil {
		e.Failed, e.Text, e.Attrs = true, "callers rejected", attr("error", err.Error())
	}
	c.Add(e)
}

// limitsChanged records that other limits came into force.
func (c changes) limitsChanged(change reload.LimitsChange) {
	e := timeline.Event{Time: change.Time, Kind: timeline.Reload, Text: "limits in force"}
	switch {
	case change.First:
		e.Text = "limits in force: " + countedText(change.Rules, "rule") + " in " + countedText(change.Domains, "domain")
	case change.Cause == "":
		e.Text = "limits in force without an expired override"
	case change.Cause == sourceOverrides:
		e.Text = "limits in force with other overrides"
	}
	e.Attrs = append(e.Attrs, attr("source", change.Cause)...)
	e.Attrs = append(e.Attrs, attr("rules", strconv.Itoa(change.Rules))...)
	e.Attrs = append(e.Attrs, attr("added", pathsText(change.Added))...)
	e.Attrs = append(e.Attrs, attr("changed", pathsText(change.Changed))...)
	e.Attrs = append(e.Attrs, attr("removed", pathsText(change.Removed))...)
	if len(change.Changed) > 0 {
		counters := "kept"
		if change.NewCounters {
			counters = "new"
		}
		e.Attrs = append(e.Attrs, attr("counters", counters)...)
	}
	c.Add(e)
}

// countedText returns n with its noun.
func countedText(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// pathsText returns the first of paths, one a line.
func pathsText(paths []string) string {
	const maxPaths = 10
	lines := paths[:min(len(paths), maxPaths)]
	if more := len(paths) - len(lines); more > 0 {
		lines = append(lines[:maxPaths:maxPaths], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// limitsRejected records that limits were rejected, and why.
func (c changes) limitsRejected(err error) {
	c.Add(timeline.Event{Kind: timeline.Refusal, Failed: true, Text: "limits rejected", Attrs: attr("problem", err.Error())})
}

// overridesChanged records changes of overrides. Many changes at once make one event.
func (c changes) overridesChanged(all []reload.OverrideChange) {
	const maxEvents = 10
	if len(all) > maxEvents {
		counts := map[reload.Action]int{}
		for _, change := range all {
			counts[change.Action]++
		}
		e := timeline.Event{Kind: timeline.Override, Text: fmt.Sprintf("%d overrides changed", len(all))}
		for _, action := range []reload.Action{reload.OverrideSet, reload.OverrideChanged, reload.OverrideDeleted, reload.OverrideExpired, reload.OverrideRejected} {
			if counts[action] > 0 {
				e.Attrs = append(e.Attrs, attr(string(action), strconv.Itoa(counts[action]))...)
			}
		}
		c.Add(e)
		return
	}
	for _, change := range all {
		c.Add(overrideEvent(change))
	}
}

func overrideEvent(change reload.OverrideChange) timeline.Event {
	s := &change.State
	e := timeline.Event{Kind: timeline.Override, Text: strings.ReplaceAll(string(s.Kind), "_", " ") + " " + string(change.Action) + ": " + cmp.Or(s.Target, "all")}
	e.Attrs = append(e.Attrs, attr("set by", s.Author)...)
	e.Attrs = append(e.Attrs, attr("reason", s.Reason)...)
	if !s.Expires.IsZero() {
		e.Attrs = append(e.Attrs, attr("until", s.Expires.UTC().Format(time.RFC3339))...)
	}
	switch change.Action {
	case reload.OverrideRejected:
		e.Kind, e.Failed = timeline.Refusal, true
		e.Attrs = append(e.Attrs, attr("problem", s.Problem.Error())...)
	case reload.OverrideDeleted, reload.OverrideExpired:
		e.Attrs = append(e.Attrs, attr("limits", s.BaseLimits)...)
		return e
	}
	e.Attrs = append(e.Attrs, attr("limits", s.Limits)...)
	e.Attrs = append(e.Attrs, attr("without", s.BaseLimits)...)
	return e
}

// sourceChanged records that a source of limits was lost, or is back.
func (c changes) sourceChanged(source string, err error) {
	if err != nil {
		c.Add(timeline.Event{Kind: timeline.Source, Failed: true, Text: "source of limits lost: " + source, Attrs: attr("error", err.Error())})
		return
	}
	c.Add(timeline.Event{Kind: timeline.Source, Text: "source of limits in use: " + source})
}

// storeChanged records that a store went down or came up.
func (c changes) storeChanged(store string, change fallback.StateChange, s *env.Settings) {
	o := &change.Outage
	if change.Down {
		e := timeline.Event{Time: o.Start, Kind: timeline.Breaker, Failed: true, Text: store + " outage started"}
		if o.Err != nil {
			e.Attrs = attr("error", o.Err.Error())
		}
		e.Attrs = append(e.Attrs, attr("mode", s.RedisFailureMode)...)
		e.Attrs = append(e.Attrs, attr("ratio", strconv.FormatFloat(s.RedisFallbackRatio, 'g', 3, 64))...)
		c.Add(e)
		return
	}
	c.Add(timeline.Event{Kind: timeline.Breaker, Text: store + " outage ended", Attrs: priceAttrs(o)})
}

// blipEnded records a short time in which calls were decided without a store.
func (c changes) blipEnded(store string, o *fallback.Outage) {
	c.Add(timeline.Event{Kind: timeline.Breaker, Text: "calls decided without " + store + " for a moment", Attrs: priceAttrs(o)})
}

// priceAttrs describes the price of an outage.
func priceAttrs(o *fallback.Outage) []timeline.Attr {
	count := func(name string, n int64) timeline.Attr {
		return timeline.Attr{Name: name, Value: strconv.FormatInt(n, 10)}
	}
	attrs := []timeline.Attr{
		{Name: "lasted", Value: o.Duration().Round(time.Millisecond).String()},
		count("calls", o.Calls),
		count("calls admitted", o.AdmittedCalls),
		count("hits at most too many", o.MaxExcessHits),
		count("hits replayed", o.Replayed),
	}
	for _, reason := range backend.Reasons {
		if n := o.ByReason[reason]; n > 0 {
			attrs = append(attrs, count(strings.ReplaceAll(reason.String(), "_", " "), n))
		}
	}
	for i, p := range o.Limits {
		if i == 3 || p.MaxExcessHits == 0 {
			break
		}
		attrs = append(attrs, timeline.Attr{Name: strings.TrimSpace(p.Rule + ": " + p.Limit), Value: fmt.Sprintf("at most %d too many", p.MaxExcessHits)})
	}
	return attrs
}
