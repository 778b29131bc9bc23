package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/reload"
	"github.com/seed-81f232ab/rls/server"
)

// limits puts limits in force, whichever source they come from, and tells of it:
// of what is in force, and of what is refused.
type limits struct {
	store    descriptors.Store
	health   *server.Health
	observer reload.Observer
	log      *slog.Logger

	// followHealth makes the health component config say whether there are limits.
	followHealth bool

	mu        sync.Mutex
	base      *descriptors.Config // what the source says, without overrides; nil if nothing yet
	refused   error               // why the source's newest limits are not in force; nil if they are
	unfed     error               // why the source has none to tell; nil if it can tell
	overrides *overriding         // nil without OVERRIDES_ENABLED
}

func newLimits(s *env.Settings, health *server.Health, observer reload.Observer, log *slog.Logger) *limits {
	l := &limits{health: health, observer: observer, log: log, followHealth: s.HealthyWithAtLeastOneConfigLoad}
	l.setHealth(nil)
	return l
}

// install puts cfg in force. from are log attributes that say where it comes from.
func (l *limits) install(cfg *descriptors.Config, from ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base, l.refused = cfg, nil
	l.observer.LimitsLoaded(len(cfg.Domains()))
	l.setHealth(cfg)
	l.tell(from, l.renew())
}

// renew puts in force what l.base and the overrides come to, and returns log attributes
// that name the rules that have changed.
func (l *limits) renew() (changed []any) {
	old, cfg := l.store.Load(), l.base
	if l.overrides != nil {
		cfg = l.overrides.over(l, time.Now())
	}
	l.store.Set(cfg)
	l.countProblems()
	if old == nil {
		return nil
	}
	return changes(cfg.ChangesFrom(old))
}

// tell logs what is in force, and where it comes from.
func (l *limits) tell(from, changed []any) {
	cfg := l.store.Load()
	l.log.Info("limits in force", slices.Concat(from, []any{"domains", len(cfg.Domains()), "rules", cfg.Rules()}, changed)...)
}

// changes are log attributes that name the rules that have changed.
func changes(c descriptors.Changes) []any {
	var told []any
	for _, part := range []struct {
		name  string
		paths []string
	}{{"added", c.Added}, {"changed", c.Changed}, {"removed", c.Removed}} {
		if len(part.paths) > 0 {
			told = append(told, part.name, few(part.paths))
		}
	}
	return told
}

// refuse tells that newer limits can't be put in force; those in force stay. The
// same is told once, unless again is set.
func (l *limits) refuse(err error, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.refused; known != nil && known.Error() == err.Error() && !again {
		return
	}
	l.refused = err
	l.observer.LimitsRejected()
	l.countProblems()
	what := "limits refused; those before stay in force"
	if l.store.Load() == nil {
		what = "limits refused; calls are refused until there are good ones"
	}
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		if i == mostProblems {
			l.log.Error(what, "and_more_problems", len(lines)-i, "see", "/rlconfig/problems")
			break
		}
		l.log.Error(what, "problem", line)
	}
}

// starve tells why the source can't say what the limits should be, or that it can
// again if err is nil. Those in force stay.
func (l *limits) starve(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unfed = err
}

// mostProblems is how many lines of one refusal are logged.
const mostProblems = 20

// problems are why newer limits, or overrides, are not in force: one a line.
func (l *limits) problems() []string {
	var lines []string
	if l.refused != nil {
		lines = strings.Split(l.refused.Error(), "\n")
	}
	if l.overrides != nil {
		for _, s := range l.overrides.known.States() {
			if s.Problem != nil {
				lines = append(lines, strings.Split(s.Problem.Error(), "\n")...)
			}
		}
	}
	return lines
}

func (l *limits) countProblems() {
	l.observer.ConfigProblems(len(l.problems()))
}

func (l *limits) setHealth(cfg *descriptors.Config) {
	if l.followHealth {
		l.health.Set("config", cfg != nil && len(cfg.Domains()) > 0, "no limits loaded")
	}
}

// few is the first of names, for a log line.
func few(names []string) string {
	const most = 10
	if more := len(names) - most; more > 0 {
		return strings.Join(names[:most], "; ") + fmt.Sprintf("; and %d more", more)
	}
	return strings.Join(names, "; ")
}

// pages show the limits on the debug listener.
func (l *limits) pages() []server.Page {
	return []server.Page{
		{Path: "/rlconfig", Help: "the limits in force", Handler: text(l.writeLimits)},
		{Path: "/rlconfig/problems", Help: "why newer limits or overrides are refused, if they are", Handler: text(l.writeProblems)},
	}
}

// writeLimits writes the limits in force, one a line.
func (l *limits) writeLimits(w io.Writer) {
	if cfg := l.store.Load(); cfg != nil {
		_ = cfg.WriteLines(w)
	}
}

// writeProblems writes why newer limits, or overrides, are not in force, one problem a
// line: nothing if all are.
func (l *limits) writeProblems(w io.Writer) {
	l.mu.Lock()
	lines := l.problems()
	if l.unfed != nil {
		lines = append([]string{l.unfed.Error()}, lines...)
	}
	l.mu.Unlock()
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
}

func text(write func(io.Writer)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		write(w)
	})
}
