package live

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/timeline"
)

// Options configure a Live. The functions must return at once.
type Options struct {
	Version, Instance string

	// Backend is the place of the counters: "redis" or "local".
	Backend string

	// ShadowMode reports that the service answers OK to all requests.
	ShadowMode bool

	// Store has the limits in force.
	Store *descriptors.Store

	// Limits describes the limits in force.
	Limits func() Limits

	// Counts returns the hits of all limits since the process has started.
	Counts func() iter.Seq[LimitCounts]

	// Redis describes Redis. It is nil if the backend is local.
	Redis func() *Redis

	// Overrides returns all overrides, sorted by target. It is nil without overrides.
	Overrides func() []Override

	// Replicas returns the number of replicas seen, or 0 if it is unknown. It may be nil.
	Replicas func() int

	// Draining reports whether the process stops.
	Draining func() bool

	// Events has the changes of the process.
	Events *timeline.Timeline

	// Keys is the mode of TopKeys.
	Keys string
}

// LimitCounts are the hits on one limit since the process has started.
type LimitCounts struct {
	Rule, Limit string // path of the rule; name of the limit among the limits of the rule

	OK, Near, Denied, Shadow uint64 // see Rates
}

// Bounds of a Snapshot.
const (
	maxEvents    = 100
	maxOverrides = 200
	maxProblems  = 50
)

// Live makes snapshots of the process.
type Live struct {
	o       Options
	started time.Time

	mu       sync.Mutex
	snapshot *Snapshot // the last one
}

// New returns a Live. Its figures are empty until Run runs.
func New(o Options) *Live { return &Live{o: o, started: time.Now()} }

// Run samples the figures once a second until ctx is done.
func (l *Live) Run(ctx context.Context) {
	<-ctx.Done()
}

// snapshotTTL is how long viewers share a snapshot.
const snapshotTTL = 500 * time.Millisecond

// Snapshot returns a description of the process, which is at most snapshotTTL old. Viewers
// share it and must not change it.
func (l *Live) Snapshot() *Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.snapshot == nil || now.Sub(l.snapshot.Time) >= snapshotTTL {
		l.snapshot = l.newSnapshot(now)
	}
	return l.snapshot
}

func (l *Live) newSnapshot(now time.Time) *Snapshot {
	s := &Snapshot{
		Time:     now,
		Started:  l.started,
		Version:  l.o.Version,
		Instance: l.o.Instance,
		State:    l.state(),
		Figures:  Figures{StepSeconds: stepSeconds},
		Rules:    RuleList{Shown: []Rule{}},
		Keys:     TopKeys{Mode: l.o.Keys, Hottest: []Key{}, Denied: []Key{}, SampledShare: 1},
		Events:   l.o.Events.Events(),
	}
	s.Events = s.Events[:min(len(s.Events), maxEvents)]
	s.Overrides = l.overrides()
	s.State.describe(now)
	return s
}

// stepSeconds is the length of a step.
const stepSeconds = 5

func (l *Live) state() State {
	s := State{Backend: l.o.Backend, Limits: l.o.Limits(), ShadowMode: l.o.ShadowMode, Draining: l.o.Draining()}
	if l.o.Redis != nil {
		s.Redis = l.o.Redis()
	}
	if l.o.Replicas != nil {
		s.Replicas = l.o.Replicas()
	}
	problems := s.Limits.Problems
	s.Limits.Problems = append([]string{}, problems[:min(len(problems), maxProblems)]...)
	s.Limits.MoreProblems = len(problems) - len(s.Limits.Problems)
	return s
}

func (l *Live) overrides() OverrideList {
	list := OverrideList{Shown: []Override{}}
	if l.o.Overrides == nil {
		return list
	}
	all := l.o.Overrides()
	list.Enabled = true
	list.Shown = append(list.Shown, all[:min(len(all), maxOverrides)]...)
	list.More = len(all) - len(list.Shown)
	return list
}
