// Package reload puts the limits of a source in force, with overrides applied, and reports what is in force and
// what was rejected. If limits or an override are rejected, the previous value stays in force. The base is the
// limits of the source, without overrides.
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

	// Observer is notified of each change.
	Observer Observer

	// Log may be nil.
	Log *slog.Logger
}

// Reloader puts updates of sources in force. It is safe for concurrent use.
type Reloader struct {
	options Options

	mu          sync.Mutex
	base        *limitsfile.Set  // nil before the first good limits
	problem     error            // why the newest limits were rejected; nil if they are in force
	outages     map[string]error // by source; nil if the source can be read
	overrides   override.Table
	expiryTimer *time.Timer // of the next override that expires; nil if none does

	inForceSince   time.Time                 // when the limits in force last changed or were loaded
	overridesRead  bool                      // the overrides were read at least once
	overrideStates map[string]override.State // of the last report, by field; nil before the first report

	loggedWarnings map[string]bool // the warnings of the limits in force, which are in the log
}

// New returns a Reloader without limits.
func New(o Options) *Reloader {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Reloader{options: o, outages: map[string]error{}}
}

// Follow runs s and puts its updates in force until ctx is done. name is the source in reports. If firstOutcome is
// not nil, it has capacity 1 and gets nil, or why the first update is not in force.
func (r *Reloader) Follow(ctx context.Context, name string, s source.Source, firstOutcome chan<- error) error {
	return s.Run(ctx, func(u source.Update) error {
		err := r.Apply(name, u)
		select {
		case firstOutcome <- cmp.Or(err, u.Outage):
		default: // not the first update
		}
		return err
	})
}

// Apply puts an update of the named source in force, or returns why it was rejected.
func (r *Reloader) Apply(name string, u source.Update) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setOutage(name, u.Outage)
	if u.Problem != nil {
		r.reject(u.Problem, u.Limits != nil)
		if u.Limits == nil {
			return u.Problem
		}
	}
	if u.Overrides != nil {
		r.overrides.Set(u.Overrides)
		r.overridesRead = true
	}
	switch {
	case u.Limits != nil:
		r.logWarnings(u.Limits.Warnings)
		r.base, r.problem = u.Limits, u.Problem
		changes := r.renew(name)
		r.inForceSince = time.Now()
		r.options.Observer.LimitsLoaded(len(u.Limits.Domains))
		r.logInForce(u.Attrs, changes)
	case u.Overrides != nil && r.base != nil:
		if changes := r.renew(name); len(changes) > 0 {
			r.logInForce([]slog.Attr{slog.Int("overrides", len(u.Overrides))}, changes)
		}
	}
	if u.Outage == nil {
		r.options.Observer.SourceRead(name)
	}
	return u.Problem
}

func (r *Reloader) setOutage(name string, err error) {
	oldErr, isKnown := r.outages[name]
	r.outages[name] = err
	if !isKnown || (oldErr == nil) != (err == nil) {
		r.options.Observer.SourceState(name, err)
	}
}

// renew puts base with overrides in force. cause is the name of the updated source, or empty. renew returns log
// attributes for the rules that have changed.
func (r *Reloader) renew(cause string) []slog.Attr {
	old := r.options.Store.Load()
	set, nextExpiry := r.overrides.Apply(r.base, time.Now())
	cfg := descriptors.Compile(set)
	r.options.Store.Set(cfg)
	r.renewAt(nextExpiry)
	r.reportOverrides()
	r.options.Observer.ConfigProblems(len(r.problems()))
	change := LimitsChange{Time: time.Now(), Cause: cause, First: old == nil, Domains: len(cfg.Domains()), Rules: cfg.Rules()}
	if !change.First {
		change.Changes = cfg.ChangesFrom(old)
	}
	attrs := changeAttrs(change.Changes)
	if change.First || len(attrs) > 0 {
		r.inForceSince = change.Time
		r.options.Observer.LimitsChanged(change)
	}
	return attrs
}

// renewAt schedules the renewal at the end of an override, or none for the zero Time.
func (r *Reloader) renewAt(end time.Time) {
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
		case r.expiryTimer != timer: // replaced while it fired
		case time.Now().Before(end):
			r.renewAt(end)
		default:
			if changes := r.renew(""); len(changes) > 0 {
				r.logInForce([]slog.Attr{slog.String("reason", "override expired")}, changes)
			}
		}
	})
	r.expiryTimer = timer
}

// Bounds of the log; /rlconfig/problems has everything.
const (
	maxLoggedProblems = 20
	maxLoggedBytes    = 1 << 10 // of one problem of an override
)

func (r *Reloader) logInForce(cause, changes []slog.Attr) {
	cfg := r.options.Store.Load()
	attrs := slices.Concat(cause, []slog.Attr{slog.Int("domains", len(cfg.Domains())), slog.Int("rules", cfg.Rules())}, changes)
	r.options.Log.LogAttrs(context.Background(), slog.LevelInfo, "limits in force", attrs...)
}

func changeAttrs(c descriptors.Changes) []slog.Attr {
	var attrs []slog.Attr
	add := func(name string, paths []string) {
		if len(paths) > 0 {
			attrs = append(attrs, source.NamesAttr(name, paths))
		}
	}
	add("added", c.Added)
	add("changed", c.Changed)
	add("removed", c.Removed)
	switch {
	case len(c.Changed) > 0 && c.NewCounters:
		attrs = append(attrs, slog.String("counters", "new"))
	case len(c.Changed) > 0:
		attrs = append(attrs, slog.String("counters", "kept"))
	}
	return attrs
}

// logWarnings logs the warnings that the previous limits didn't have.
func (r *Reloader) logWarnings(warnings fields.Problems) {
	logged := map[string]bool{}
	for _, w := range warnings {
		text := w.String()
		if !r.loggedWarnings[text] {
			r.options.Log.Warn("limits suspicious", "warning", text)
		}
		logged[text] = true
	}
	r.loggedWarnings = logged
}

// reject records why the newest limits, or a part of them, are rejected.
func (r *Reloader) reject(err error, isPart bool) {
	r.problem = err
	r.options.Observer.LimitsRejected(err)
	r.options.Observer.ConfigProblems(len(r.problems()))
	message := "limits rejected; the last good ones stay in force"
	switch {
	case isPart:
		message = "limits rejected in part; the last good ones of their domain stay in force, if there are any"
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

// problems returns why the newest limits or overrides are not in force, one line each.
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

// WriteLimits writes the limits in force, one line each.
func (r *Reloader) WriteLimits(w io.Writer) {
	if cfg := r.options.Store.Load(); cfg != nil {
		_ = cfg.WriteLines(w)
	}
}

// WriteProblems writes why sources are down, and problems, one line each.
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
	// InForceSince is the time of the last change of the limits in force, or of the last update of their source. It
	// is zero without limits.
	InForceSince time.Time

	// Problems are the reasons why the newest limits or overrides are not in force, one line each.
	Problems []string

	// Outages are the errors of the sources that can't be read, by source.
	Outages map[string]error
}

// Status returns the Status of this moment.
func (r *Reloader) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{InForceSince: r.inForceSince, Problems: r.problems(), Outages: maps.Clone(r.outages)}
	maps.DeleteFunc(s.Outages, func(_ string, err error) bool { return err == nil })
	return s
}

// States returns the state of each override, rule and switch, sorted by field.
func (r *Reloader) States() []override.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.overrides.States()
}

// DryRun returns the state that the value of a field would have. It changes nothing.
func (r *Reloader) DryRun(field, value string) override.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.base == nil {
		kind, target := override.SplitField(field)
		return override.State{Kind: kind, Target: target, Value: value, Problem: override.ErrNoLimits, Waiting: true}
	}
	return r.overrides.DryRun(r.base, field, value, time.Now())
}
