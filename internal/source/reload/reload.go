// Package reload puts the limits of a source in force, and applies the overrides to the limits. It reports the limits
// in force, and the limits and overrides that it rejects. If it rejects limits or an override, the previous value
// stays in force. The base is the set of limits of the source, without overrides.
package reload

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/source"
)

// Options configure a Reloader.
type Options struct {
	// Store gets the limits in force.
	Store *descriptors.Store

	// Observer learns of each change.
	Observer Observer

	// Log gets a line for each change. Log may be nil.
	Log *slog.Logger
}

// Reloader puts updates of sources in force. It is safe for concurrent use.
type Reloader struct {
	options Options

	mu          sync.Mutex
	base        *limitsfile.Set  // nil before the first valid limits
	baseHash    string           // the hash of base; empty until BaseLimitsHash is called
	problem     error            // the reason why the newest limits are rejected; nil if the newest limits are in force
	outages     map[string]error // the key is the source; the error is nil if the source can be read
	overrides   override.Table
	expiryTimer *time.Timer // fires when the next override expires; nil if no override expires

	inForceSince     time.Time                 // the time when the limits in force last changed or were loaded
	hasReadOverrides bool                      // the overrides were read at least once
	hasLostOverrides bool                      // the last overrides lack overrides that their source has lost
	overrideStates   map[string]override.State // the states in the last report; the key is the field; nil before the first report

	loggedWarnings map[string]bool // the warnings about the limits in force; all of them are in the log
}

// New returns a Reloader without limits.
func New(o Options) *Reloader {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Reloader{options: o, outages: map[string]error{}}
}

// Follow runs s and puts the updates of s in force until ctx is done. name is the name of s in reports. firstResult is
// nil or a channel of capacity 1. Follow sends one value to the channel: nil if the first update is in force, or the
// error.
func (r *Reloader) Follow(ctx context.Context, name string, s source.Source, firstResult chan<- error) error {
	return s.Run(ctx, func(u source.Update) error {
		err := r.Apply(name, u)
		select {
		case firstResult <- cmp.Or(err, u.Outage):
		default: // the channel has the result of the first update
		}
		return err
	})
}

// Apply puts an update of the named source in force. If the update is invalid, Apply returns the problem.
func (r *Reloader) Apply(name string, u source.Update) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	lastOutage, isKnown := r.outages[name]
	r.outages[name] = u.Outage
	if !isKnown || (lastOutage == nil) != (u.Outage == nil) {
		r.options.Observer.SourceState(name, u.Outage)
	}
	if u.Problem != nil {
		r.reject(u.Problem, u.Limits != nil)
		if u.Limits == nil {
			return u.Problem
		}
	}
	if u.Overrides != nil {
		r.overrides.Set(u.Overrides)
		r.hasReadOverrides, r.hasLostOverrides = true, u.OverridesLost
	}
	switch {
	case u.Limits != nil:
		r.logWarnings(u.Limits.Warnings)
		r.base, r.baseHash, r.problem = u.Limits, "", u.Problem
		ruleAttrs := r.replaceLimits(name)
		r.inForceSince = time.Now()
		r.options.Observer.LimitsLoaded(len(u.Limits.Domains))
		r.logLimits(u.Attrs, ruleAttrs)
	case u.Overrides != nil && r.base != nil:
		if ruleAttrs := r.replaceLimits(name); len(ruleAttrs) > 0 {
			r.logLimits([]slog.Attr{slog.Int("overrides", len(u.Overrides))}, ruleAttrs)
		}
	}
	if u.Outage == nil {
		r.options.Observer.SourceRead(name)
	}
	return u.Problem
}

// replaceLimits puts the base with the overrides in force. cause is the name of the source with the update, or empty
// if an override has expired. replaceLimits returns log attributes for the rules that have changed.
func (r *Reloader) replaceLimits(cause string) []slog.Attr {
	oldConfig := r.options.Store.Load()
	set, nextExpiry := r.overrides.Apply(r.base, time.Now())
	config := descriptors.Compile(set)
	r.options.Store.Set(config)
	r.scheduleExpiry(nextExpiry)
	r.reportOverrides()
	r.options.Observer.ConfigProblems(len(r.problems()))
	change := LimitsChange{Time: time.Now(), Cause: cause, First: oldConfig == nil, Domains: len(config.Domains()), Rules: config.RuleCount()}
	if !change.First {
		change.Changes = config.ChangesFrom(oldConfig)
		for _, d := range oldConfig.Domains() {
			if config.Domain(d.Name) == nil {
				change.RemovedDomains = append(change.RemovedDomains, d.Name)
			}
		}
	}
	attrs := changeAttrs(&change)
	if change.First || len(attrs) > 0 {
		r.inForceSince = change.Time
		r.options.Observer.LimitsChanged(change)
	}
	return attrs
}

// scheduleExpiry starts the timer that replaces the limits at the end of an override. The zero Time stops the timer.
func (r *Reloader) scheduleExpiry(end time.Time) {
	if r.expiryTimer != nil {
		r.expiryTimer.Stop()
		r.expiryTimer = nil
	}
	if end.IsZero() {
		return
	}
	// A timer doesn't notice a change of the system clock, so the clock is read each minute.
	var timer *time.Timer
	timer = time.AfterFunc(min(time.Until(end), time.Minute), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.expiryTimer != timer: // an update has replaced the timer while the timer fired
		case time.Now().Before(end):
			r.scheduleExpiry(end)
		default:
			if ruleAttrs := r.replaceLimits(""); len(ruleAttrs) > 0 {
				r.logLimits([]slog.Attr{slog.String("reason", "override expired")}, ruleAttrs)
			}
		}
	})
	r.expiryTimer = timer
}

// Bounds of the log. The page /rlconfig/problems shows all problems in full.
const (
	maxLoggedProblems = 20
	maxLoggedBytes    = 1 << 10 // bounds one problem of an override
)

func (r *Reloader) logLimits(updateAttrs, ruleAttrs []slog.Attr) {
	config := r.options.Store.Load()
	attrs := slices.Concat(updateAttrs, []slog.Attr{slog.Int("domains", len(config.Domains())), slog.Int("rules", config.RuleCount())}, ruleAttrs)
	level := slog.LevelInfo
	if slices.ContainsFunc(ruleAttrs, func(a slog.Attr) bool { return a.Key == "removed_domains" }) {
		level = slog.LevelWarn // a typing error in the name of a domain removes the domain
	}
	r.options.Log.LogAttrs(context.Background(), level, "limits in force", attrs...)
}

func changeAttrs(c *LimitsChange) []slog.Attr {
	var attrs []slog.Attr
	if len(c.RemovedDomains) > 0 {
		attrs = append(attrs, slog.String("removed_domains", strings.Join(c.RemovedDomains, "; ")))
	}
	add := func(name string, rules descriptors.RuleChanges) {
		if len(rules) > 0 {
			attrs = append(attrs, slog.String(name, rules.Join("; ")))
		}
	}
	add("added", c.Added)
	add("changed", c.Changed)
	add("removed", c.Removed)
	switch {
	case len(c.Changed) > 0 && c.HasNewCounters:
		attrs = append(attrs, slog.String("counters", "new"))
	case len(c.Changed) > 0:
		attrs = append(attrs, slog.String("counters", "kept"))
	}
	return attrs
}

func (r *Reloader) logWarnings(warnings fields.Problems) {
	newWarnings := map[string]bool{}
	for _, w := range warnings {
		text := w.String()
		if !r.loggedWarnings[text] {
			r.options.Log.Warn("limits suspicious", "warning", text)
		}
		newWarnings[text] = true
	}
	r.loggedWarnings = newWarnings
}

// reject records and logs err, the problem of the newest limits. hasValidPart reports whether a part of the newest limits
// comes into force.
func (r *Reloader) reject(err error, hasValidPart bool) {
	r.problem = err
	r.options.Observer.LimitsRejected(err)
	r.options.Observer.ConfigProblems(len(r.problems()))
	message := "limits rejected; the last good limits stay in force"
	switch {
	case hasValidPart:
		message = "limits rejected in part; a domain with a rejected part keeps its last good limits, if it had any"
	case r.base == nil:
		message = "limits rejected; no limits are in force"
	}
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		if i == maxLoggedProblems {
			r.options.Log.Error(message, "and_more_problems", len(lines)-i, "see", "/rlconfig/problems")
			break
		}
		r.options.Log.Error(message, "problem", line)
	}
}

func (r *Reloader) problems() []string {
	var lines []string
	if r.problem != nil {
		lines = strings.Split(r.problem.Error(), "\n")
	}
	for _, s := range r.overrides.States() {
		if s.Problem != nil {
			lines = append(lines, strings.Split(s.Problem.Error(), "\n")...)
		}
	}
	return lines
}

// WriteLimits writes the limits in force, one line for each limit.
func (r *Reloader) WriteLimits(w io.Writer) {
	if config := r.options.Store.Load(); config != nil {
		_ = config.WriteLines(w)
	}
}

// WriteProblems writes one line for each source that is down, and then one line for each problem of the newest limits
// and overrides.
func (r *Reloader) WriteProblems(w io.Writer) {
	s := r.Status()
	for _, name := range slices.Sorted(maps.Keys(s.Outages)) {
		fmt.Fprintln(w, s.Outages[name])
	}
	for _, line := range s.Problems {
		fmt.Fprintln(w, line)
	}
}

// Status describes the limits in force.
type Status struct {
	// InForceSince is the time of the last change of the limits in force, or of the last update of their source. If
	// no limits are in force, InForceSince is zero.
	InForceSince time.Time

	// Problems are the problems of the newest limits and overrides, one line for each problem.
	Problems []string

	// Outages are the errors of the sources that can't be read. The key is the source.
	Outages map[string]error
}

// Status returns the current Status.
func (r *Reloader) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{InForceSince: r.inForceSince, Problems: r.problems(), Outages: maps.Clone(r.outages)}
	maps.DeleteFunc(s.Outages, func(_ string, err error) bool { return err == nil })
	return s
}

// BaseLimitsHash returns the hash of the limits of the source, without overrides, or "" before the first valid limits.
func (r *Reloader) BaseLimitsHash() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if config := r.options.Store.Load(); config != nil && len(r.overrides.States()) == 0 {
		return config.Hash() // the limits in force are the base, so a large base is not compiled twice
	}
	if r.baseHash == "" && r.base != nil {
		r.baseHash = descriptors.Compile(r.base).Hash()
	}
	return r.baseHash
}

// Base returns the limits of the source, or nil before the first valid limits. The caller must not change them.
func (r *Reloader) Base() *limitsfile.Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.base
}

// States returns the state of each override, rule and switch, sorted by field.
func (r *Reloader) States() []override.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.overrides.States()
}

// DryRun returns the state that the field would have with this value. DryRun changes nothing.
func (r *Reloader) DryRun(field, value string) override.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.base == nil {
		kind, target := override.SplitField(field)
		return override.State{Kind: kind, Target: target, Value: value, Problem: override.ErrNoLimits, IsWaiting: true}
	}
	return r.overrides.DryRun(r.base, field, value, time.Now())
}
