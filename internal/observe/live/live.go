package live

import (
	"context"
	"crypto/rand"
	"iter"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
)

// Options configure a Live. The functions must return at once.
type Options struct {
	Version, Instance string

	Backend    string // the place of the counters: "redis" or "local"
	ShadowMode bool   // of the service

	Recorder *Recorder          // observes the calls of the service
	Store    *descriptors.Store // has the limits in force
	Limits   func() Limits      // the source of the limits, when they came into force, and their problems

	Counts    func() iter.Seq[metrics.RuleCounts] // of all limits; the limits of a rule follow each other
	CPUTime   func() time.Duration                // of the process since its start
	Process   func() Process                      // what the process uses of its host
	Redis     func() *Redis                       // nil if the backend is local
	Overrides func() []Override                   // sorted by target; nil without overrides
	Candidate func() *Candidate                   // nil without a candidate
	Replicas  func() int                          // replicas seen, or 0 if unknown; nil without shared overrides
	Draining  func() bool                         // whether the process stops
	Events    *timeline.Timeline                  // the changes of the process
	Keys      KeyMode                             // of TopKeys
}

// Bounds of a Snapshot.
const (
	maxRules     = 100
	maxKeys      = 20 // of each list
	maxExamples  = 5  // of descriptors without a rule
	maxCallers   = 10
	maxEvents    = 100
	maxOverrides = 200
	maxProblems  = 50
)

// Live makes snapshots of the process.
type Live struct {
	o       Options
	hash    *decisionlog.Hash // of keys
	started time.Time
	viewers chan struct{} // has a value for each viewer of the stream

	mu           sync.Mutex // guards the fields below
	lastSample   time.Time
	lastCPUTime  time.Duration
	history      history
	denials      denialWatch
	traffic      *traffic
	rules        ruleBook
	inForce      State        // what changes only with the limits in force
	overrides    OverrideList // of the limits in force
	countsReadAt time.Time    // of the counts of rules
	viewedAt     time.Time
	snapshot     *Snapshot // the last one
}

// New returns a Live. Its figures are empty until Run runs.
func New(o Options) *Live {
	now := time.Now()
	return &Live{
		o: o, hash: decisionlog.NewHash(rand.Text()), viewers: make(chan struct{}, maxViewers), traffic: &traffic{rules: map[string]*ruleTraffic{}},
		started: now, lastSample: now, countsReadAt: now,
	}
}

// Run samples the figures once a second, until ctx is done.
func (l *Live) Run(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.takeSample(time.Now())
		}
	}
}

func (l *Live) takeSample(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addSample(now)
}

// viewerTimeout is how long after a view the counts of rules are read with each sample. Without viewers, they are
// read once in each step, because there can be many rules.
const viewerTimeout = 10 * time.Second

// addSample does the work of takeSample. The caller holds l.mu.
func (l *Live) addSample(now time.Time) {
	seconds := now.Sub(l.lastSample).Seconds()
	if seconds <= 0 {
		return
	}
	l.lastSample = now
	calls, redis, uses := l.o.Recorder.collect(seconds)
	l.traffic.addUses(uses)
	cpuTime := l.o.CPUTime()
	endsStep := l.history.add(&sample{calls, redis, cpuTime - l.lastCPUTime}, seconds)
	l.lastCPUTime = cpuTime
	if endsStep {
		l.denials.update(now, &l.history.steps, l.o.Events)
	}
	if endsStep || now.Sub(l.viewedAt) < viewerTimeout {
		l.traffic.addCounts(l.o.Counts(), endsStep, l.history.lastLength)
		l.countsReadAt = now
	}
}

const snapshotTTL = 500 * time.Millisecond // how long viewers share a snapshot

// Snapshot returns a description of the process, at most snapshotTTL old. Viewers share it and must not change it.
func (l *Live) Snapshot() *Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.viewedAt = now
	if l.snapshot == nil || now.Sub(l.snapshot.Time) >= snapshotTTL {
		l.snapshot = l.newSnapshot(now)
	}
	if len(l.snapshot.Rules.Shown) == 0 || now.Sub(l.countsReadAt) > 2*time.Second {
		// The first hits after a pause are shown at once.
		l.addSample(now)
		l.snapshot = l.newSnapshot(now)
	}
	return l.snapshot
}

func (l *Live) newSnapshot(now time.Time) *Snapshot {
	l.refreshLimits()
	events := l.o.Events.Events()
	return &Snapshot{
		Time:      now,
		Started:   l.started,
		Version:   l.o.Version,
		Instance:  l.o.Instance,
		Process:   l.o.Process(),
		State:     l.state(now),
		Figures:   l.history.figures(),
		Rules:     l.ruleList(),
		Keys:      l.topKeys(nil),
		Events:    events[:min(len(events), maxEvents)],
		Overrides: l.overrides,
	}
}

func (l *Live) state(now time.Time) State {
	s, limits := l.inForce, l.o.Limits()
	s.Limits.Source, s.Limits.Since = limits.Source, limits.Since
	s.Limits.Problems = append([]string{}, limits.Problems[:min(len(limits.Problems), maxProblems)]...)
	s.Limits.MoreProblems = len(limits.Problems) - len(s.Limits.Problems)
	s.Draining = l.o.Draining()
	if l.o.Redis != nil {
		s.Redis = l.o.Redis()
	}
	if l.o.Candidate != nil {
		s.Candidate = l.o.Candidate()
	}
	if l.o.Replicas != nil {
		s.Replicas = l.o.Replicas()
	}
	s.setSummary(now, signals{figures: l.history.steps, denials: l.denials.alarm})
	return s
}

func (l *Live) ruleList() RuleList {
	list := RuleList{Total: l.inForce.Limits.Rules, Shown: []Rule{}}
	paths, more := l.traffic.busiest(maxRules)
	list.More, list.Quiet = more, len(l.rules.rules)-more
	for _, path := range paths {
		rule, isKnown := l.rules.ruleAt(path)
		if isKnown {
			list.Quiet--
		}
		l.traffic.setTraffic(&rule, &l.history.stepClock)
		list.Shown = append(list.Shown, rule)
	}
	list.Quiet = max(list.Quiet, 0)
	return list
}

// refreshLimits reads what changes only with the limits in force.
func (l *Live) refreshLimits() {
	config := l.o.Store.Load()
	if config == l.rules.config && l.overrides.Shown != nil {
		return
	}
	l.inForce = State{Backend: l.o.Backend, ShadowMode: l.o.ShadowMode, Limits: Limits{Domains: []string{}}}
	if s := &l.inForce; config != nil {
		const maxShown = 5
		off := config.OffSwitches()
		for _, o := range off[:min(len(off), maxShown)] {
			s.Off = append(s.Off, o.Path+o.Notes.String())
		}
		if len(off) > maxShown {
			s.Off = append(s.Off, "and more")
		}
		s.ShadowMode = config.IsShadow(l.o.ShadowMode)
		s.Limits.Loaded, s.Limits.Hash, s.Limits.Rules = true, config.Hash(), config.Rules()
		for _, d := range config.Domains() {
			s.Limits.Domains = append(s.Limits.Domains, d.Name)
		}
	}
	authors := map[string]string{}
	l.overrides = OverrideList{Shown: []Override{}}
	if l.o.Overrides != nil {
		all := l.o.Overrides()
		l.overrides = OverrideList{Enabled: true, Shown: append([]Override{}, all[:min(len(all), maxOverrides)]...), More: max(len(all)-maxOverrides, 0)}
		for _, o := range all {
			authors[o.Target] = o.Author
		}
	}
	l.rules = newRuleBook(config, authors)
}

const maxFoundRules = 500

// Rules returns the rules of the limits whose path or limit contains text, in any case: up to 500
// of them in file order, quiet ones too, and the number of further rules.
func (l *Live) Rules(text string) (rules []Rule, more int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.viewedAt = time.Now()
	l.refreshLimits()
	rules, more = l.rules.search(text, maxFoundRules)
	for i := range rules {
		l.traffic.setTraffic(&rules[i], &l.history.stepClock)
	}
	return rules, more
}

// Rule returns the rule of that path and its busiest keys. isKnown is false if it is not in force and had no hits.
func (l *Live) Rule(path string) (rule Rule, keys TopKeys, isKnown bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.viewedAt = time.Now()
	l.refreshLimits()
	rule, isKnown = l.rules.ruleAt(path)
	l.traffic.setTraffic(&rule, &l.history.stepClock)
	keys = l.topKeys(func(e *entry) bool { return e.rule != nil && e.rule.Path == path })
	return rule, keys, isKnown || l.traffic.rules[path] != nil
}
