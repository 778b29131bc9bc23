package live

import (
	"context"
	"crypto/rand"
	"iter"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
)

// Options configure a Live. The functions must return at once.
type Options struct {
	Version, Instance string

	// Backend is the place of the counters: "redis" or "local".
	Backend string

	// ShadowMode reports that the service answers OK to all requests.
	ShadowMode bool

	// Recorder observes the calls of the service.
	Recorder *Recorder

	// Store has the limits in force.
	Store *descriptors.Store

	// Limits describes the limits in force. Live sets the fields that it finds in Store.
	Limits func() Limits

	// Counts returns the hits of all limits since the process has started. The limits of a rule follow
	// each other.
	Counts func() iter.Seq[metrics.RuleCounts]

	// Redis describes Redis. It is nil if the backend is local.
	Redis func() *Redis

	// Overrides returns all overrides, sorted by target. It is nil without overrides.
	Overrides func() []Override

	// Candidate describes the candidate limits. It is nil without a candidate.
	Candidate func() *Candidate

	// Replicas returns the number of replicas seen, or 0 if it is unknown. It may be nil.
	Replicas func() int

	// Draining reports whether the process stops.
	Draining func() bool

	// Events has the changes of the process.
	Events *timeline.Timeline

	// Keys is the mode of TopKeys.
	Keys KeyMode
}

// Bounds of a Snapshot.
const (
	maxRules     = 100
	maxKeys      = 20 // of each list
	maxExamples  = 5  // of descriptors without a rule
	maxEvents    = 100
	maxOverrides = 200
	maxProblems  = 50
)

// Live makes snapshots of the process.
type Live struct {
	o          Options
	hashSecret []byte // of hashed keys
	started    time.Time
	viewers    chan struct{} // has a value for each viewer of the stream

	mu           sync.Mutex // guards the fields below
	lastSample   time.Time
	stepStart    time.Time
	history      history
	traffic      *traffic
	rules        ruleBook
	limits       Limits       // the part of the limits in force that Store has
	overrides    OverrideList // of the limits in force
	switchedOff  []string     // the limits that switches have taken out of force
	countsReadAt time.Time    // of the counts of rules
	viewedAt     time.Time
	snapshot     *Snapshot // the last one
}

// New returns a Live. Its figures are empty until Run runs.
func New(o Options) *Live {
	now := time.Now()
	return &Live{
		o: o, hashSecret: []byte(rand.Text()), viewers: make(chan struct{}, maxViewers), traffic: newTraffic(),
		started: now, lastSample: now, stepStart: now, countsReadAt: now,
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

// If there are more than manyRules rules, their counts are read each second only until viewerTimeout after
// the last view. Later, they are read at the end of each step.
const (
	viewerTimeout = 10 * time.Second
	manyRules     = 1000
)

// takeSample adds a sample of the time since the last sample.
func (l *Live) takeSample(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addSample(now)
}

// addSample does the work of takeSample. The caller holds l.mu.
func (l *Live) addSample(now time.Time) {
	seconds := now.Sub(l.lastSample).Seconds()
	if seconds <= 0 {
		return
	}
	l.lastSample = now
	endsStep := coversWindow(now.Sub(l.stepStart).Seconds())
	calls, redis, uses := l.o.Recorder.collect(seconds)
	l.history.add(sample{seconds, calls, redis}, endsStep)
	l.traffic.addUses(uses)
	if endsStep || len(l.traffic.rules) <= manyRules || now.Sub(l.viewedAt) < viewerTimeout {
		l.traffic.addCounts(l.o.Counts(), now.Sub(l.countsReadAt).Seconds(), endsStep, now.Sub(l.stepStart).Seconds())
		l.countsReadAt = now
	}
	if endsStep {
		l.stepStart = now
	}
}

// snapshotTTL is how long viewers share a snapshot.
const snapshotTTL = 500 * time.Millisecond

// Snapshot returns a description of the process, which is at most snapshotTTL old. Viewers
// share it and must not change it.
func (l *Live) Snapshot() *Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.viewedAt = now
	s := l.snapshot
	if s == nil || now.Sub(s.Time) >= snapshotTTL {
		s = l.newSnapshot(now)
	}
	if len(s.Rules.Shown) == 0 || now.Sub(l.countsReadAt) > 2*time.Second {
		// The first hits after a pause are shown at once.
		l.addSample(now)
		s = l.newSnapshot(now)
	}
	l.snapshot = s
	return s
}

func (l *Live) newSnapshot(now time.Time) *Snapshot {
	l.refreshLimits()
	events := l.o.Events.Events()
	return &Snapshot{
		Time:      now,
		Started:   l.started,
		Version:   l.o.Version,
		Instance:  l.o.Instance,
		State:     l.state(now),
		Figures:   l.history.figures(),
		Rules:     l.ruleList(),
		Keys:      l.topKeys(nil),
		Events:    events[:min(len(events), maxEvents)],
		Overrides: l.overrides,
	}
}

func (l *Live) state(now time.Time) State {
	s := State{Backend: l.o.Backend, Limits: l.limitsInForce(), ShadowMode: l.isShadow(), Off: l.switchedOff, Draining: l.o.Draining()}
	if l.o.Redis != nil {
		s.Redis = l.o.Redis()
	}
	if l.o.Candidate != nil {
		s.Candidate = l.o.Candidate()
	}
	if l.o.Replicas != nil {
		s.Replicas = l.o.Replicas()
	}
	s.setSummary(now)
	return s
}

func (l *Live) limitsInForce() Limits {
	limits, inForce := l.o.Limits(), &l.limits
	limits.Loaded, limits.Hash, limits.Domains, limits.Rules = inForce.Loaded, inForce.Hash, inForce.Domains, inForce.Rules
	problems := limits.Problems
	limits.Problems = append([]string{}, problems[:min(len(problems), maxProblems)]...)
	limits.MoreProblems = len(problems) - len(limits.Problems)
	return limits
}

// ruleList returns the busiest rules.
func (l *Live) ruleList() RuleList {
	list := RuleList{Total: l.limits.Rules, Shown: []Rule{}}
	paths, more := l.traffic.busiest(maxRules)
	list.More, list.Quiet = more, len(l.rules.rules)-more
	for _, path := range paths {
		rule, isKnown := l.rules.ruleAt(path)
		if isKnown {
			list.Quiet--
		}
		l.traffic.setTraffic(&rule)
		list.Shown = append(list.Shown, rule)
	}
	list.Quiet = max(list.Quiet, 0)
	return list
}

// isShadow reports whether the service answers OK to all requests.
func (l *Live) isShadow() bool {
	config := l.o.Store.Load()
	return config != nil && config.IsShadow(l.o.ShadowMode) || config == nil && l.o.ShadowMode
}

// refreshLimits reads what changes only with the limits in force.
func (l *Live) refreshLimits() {
	config := l.o.Store.Load()
	if config == l.rules.config && l.overrides.Shown != nil {
		return
	}
	l.limits, l.switchedOff = Limits{Domains: []string{}}, nil
	if config != nil {
		const maxShown = 5
		off := config.OffSwitches()
		for _, o := range off[:min(len(off), maxShown)] {
			l.switchedOff = append(l.switchedOff, o.Path+o.Notes.String())
		}
		if len(off) > maxShown {
			l.switchedOff = append(l.switchedOff, "and more")
		}
		l.limits.Loaded, l.limits.Hash, l.limits.Rules = true, config.Hash(), config.Rules()
		for _, d := range config.Domains() {
			l.limits.Domains = append(l.limits.Domains, d.Name)
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

// maxFoundRules bounds the answer of Rules.
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
		l.traffic.setTraffic(&rules[i])
	}
	return rules, more
}

// Rule returns the rule of that path and its busiest keys. known is false if the path is
// neither in force nor had any hits.
func (l *Live) Rule(path string) (rule Rule, keys TopKeys, isKnown bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.viewedAt = time.Now()
	l.refreshLimits()
	rule, isKnown = l.rules.ruleAt(path)
	l.traffic.setTraffic(&rule)
	keys = l.topKeys(func(e *entry) bool { return e.rule != nil && e.rule.Path == path })
	return rule, keys, isKnown || l.traffic.rules[path] != nil
}
