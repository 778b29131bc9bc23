package live

import (
	"cmp"
	"context"
	"crypto/rand"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/service/quota"
)

// Options configure a Live. The functions must return at once.
type Options struct {
	Version, Instance string
	Name              string // the name of this process in its reports

	Backend    string // the place of the counters: "redis" or "local"
	ShadowMode bool   // the whole service is in shadow mode

	Recorder *Recorder          // observes the calls of the service
	Store    *descriptors.Store // has the limits in force
	Limits   func() Limits      // sets only Source, Since and Problems; Live sets the other fields

	Counts        func() iter.Seq[metrics.RuleCounts] // yields the hits on all limits; the limits of a rule follow each other
	CPUTime       func() time.Duration                // returns the CPU time of the process since its start
	Process       func() Process                      // describes what the process uses of its host
	Redis         func() *Redis                       // describes Redis; the func is nil if the backend is local
	Overrides     func() []Override                   // returns the overrides sorted by target; nil if overrides are not in use
	Quotas        func() []quota.RuleStats            // describes the limits that Envoys share with quotas; nil if Envoys can't share limits
	Candidate     func() *Candidate                   // describes the candidate; nil if no candidate is in use
	Reports       func() changes.Reports              // returns the last reports of all replicas; nil if replicas make no reports
	Draining      func() bool                         // reports whether the process stops
	Events        *timeline.Timeline                  // has the changes of the process
	RejectedFiles func() map[string]string            // returns the errors of files whose newest content is not in force; may be nil
	Log           *slog.Logger                        // gets the start and the end of a mass denial
	Keys          KeyMode                             // says whether TopKeys shows keys, hashes of keys, or nothing
}

// Bounds of a Snapshot.
const (
	maxRules     = 100
	maxKeys      = 20 // bounds each list of TopKeys
	maxExamples  = 5  // bounds the descriptors without a rule
	maxCallers   = 10
	maxEvents    = 100
	maxOverrides = 200
	maxProblems  = 50
	maxQuotas    = 20
)

// Live makes snapshots of the process.
type Live struct {
	options   Options
	hash      *decisionlog.Hash // hashes the keys for viewers who must not see values of requests
	startTime time.Time
	viewers   chan struct{} // has a value for each viewer of the stream

	mu             sync.Mutex // guards the fields below
	lastSampleTime time.Time
	lastCPUTime    time.Duration
	history        history
	denials        denialWatch
	traffic        *traffic
	ruleDenials    []ruleDenial // at the end of the last step
	rules          ruleIndex
	limitsState    State        // has only the fields that change with the limits in force
	overrides      OverrideList // the overrides of the limits in force
	countsReadAt   time.Time    // the time of the last read of the hits on all limits
	viewedAt       time.Time    // the last time at which somebody looked at a snapshot or at rules
	snapshot       *Snapshot    // the last snapshot, or nil
}

// New returns a Live. Its figures are empty until Run runs.
func New(options Options) *Live {
	now := time.Now()
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	return &Live{
		options: options, hash: decisionlog.NewHash(rand.Text()), viewers: make(chan struct{}, maxViewers), traffic: &traffic{rules: map[string]*ruleTraffic{}},
		startTime: now, lastSampleTime: now, countsReadAt: now,
	}
}

// Run samples the figures once a second, until ctx is done.
func (l *Live) Run(ctx context.Context) {
	for wait.Sleep(ctx, time.Second) {
		l.takeSample(time.Now())
	}
}

func (l *Live) takeSample(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addSample(now)
}

// viewerTimeout is the time after the last view in which each sample reads the hits on all limits. Later, only one sample
// in each step reads these hits, because there can be many rules.
const viewerTimeout = 10 * time.Second

// addSample does the work of takeSample. The caller holds l.mu.
func (l *Live) addSample(now time.Time) {
	seconds := now.Sub(l.lastSampleTime).Seconds()
	if seconds <= 0 {
		return
	}
	l.lastSampleTime = now
	calls, redis, uses := l.options.Recorder.collect(seconds)
	l.traffic.addUses(uses)
	cpuTime := l.options.CPUTime()
	endsStep := l.history.add(&sample{calls, redis, cpuTime - l.lastCPUTime}, seconds)
	l.lastCPUTime = cpuTime
	if endsStep {
		l.denials.update(now, &l.history.steps, l.options.Events)
		l.denials.alarm.recordRedisState(l.redis())
	}
	if endsStep || now.Sub(l.viewedAt) < viewerTimeout {
		l.traffic.addCounts(l.options.Counts(), endsStep, l.history.lastStepSeconds)
		l.countsReadAt = now
	}
	if endsStep {
		earlierDenials := l.ruleDenials
		l.ruleDenials = l.traffic.denialsSinceChange(now, l.options.Events.Events(), earlierDenials)
		for i := range l.ruleDenials {
			l.ruleDenials[i].isRedisDown = !l.redis().Up
		}
		logNewDenials(l.ruleDenials, earlierDenials, l.options.Log)
		switch {
		case l.denials.alarm.startTime.IsZero(): // nobody reads the rule
		case len(l.ruleDenials) > 0:
			l.denials.alarm.rule = l.ruleDenials[0].path
		default:
			l.denials.alarm.rule = l.traffic.mostDeniedRule()
		}
		l.denials.log(now, l.options.Log)
	}
}

// redis describes Redis. If the backend is local, the result is a Redis that works.
func (l *Live) redis() *Redis {
	if l.options.Redis == nil {
		return &Redis{Up: true}
	}
	return l.options.Redis()
}

// RulesDenyingSinceChange returns the paths of the rules that deny most hits since a change of their limits.
func (l *Live) RulesDenyingSinceChange() (paths []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.ruleDenials {
		paths = append(paths, d.path)
	}
	return paths
}

const snapshotTTL = 500 * time.Millisecond // the time for which viewers share a snapshot

// Snapshot returns a description of the process, at most snapshotTTL old. Viewers share the snapshot and must not change it.
func (l *Live) Snapshot() *Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.viewedAt = now
	if l.snapshot == nil || now.Sub(l.snapshot.Time) >= snapshotTTL {
		l.snapshot = l.newSnapshot(now)
	}
	if len(l.snapshot.Rules.Shown) == 0 || now.Sub(l.countsReadAt) > 2*time.Second {
		// The counts are old, because there was no viewer. A new sample has the latest hits.
		l.addSample(now)
		l.snapshot = l.newSnapshot(now)
	}
	return l.snapshot
}

func (l *Live) newSnapshot(now time.Time) *Snapshot {
	l.refreshLimits()
	events := l.options.Events.Events()
	fleet, aliveReplicas := l.fleet(now)
	return &Snapshot{
		Time:      now,
		Started:   l.startTime,
		Version:   l.options.Version,
		Instance:  l.options.Instance,
		Process:   l.options.Process(),
		State:     l.state(now, fleet.Notes, aliveReplicas),
		Fleet:     fleet,
		Figures:   l.history.figures(),
		Rules:     l.ruleList(),
		Keys:      l.topKeys(nil),
		Events:    events[:min(len(events), maxEvents)],
		Overrides: l.overrides,
		Quotas:    l.quotaRules(),
	}
}

func (l *Live) quotaRules() []quota.RuleStats {
	if l.options.Quotas == nil {
		return nil
	}
	rules := l.options.Quotas()
	slices.SortStableFunc(rules, func(a, b quota.RuleStats) int { return cmp.Compare(b.DemandedRate, a.DemandedRate) })
	return rules[:min(len(rules), maxQuotas)]
}

// state describes the process. fleetNotes and replicas are about all replicas.
func (l *Live) state(now time.Time, fleetNotes []string, replicas int) State {
	state, limits := l.limitsState, l.options.Limits()
	state.Limits.Source, state.Limits.Since = limits.Source, limits.Since
	state.Limits.Problems = append([]string{}, limits.Problems[:min(len(limits.Problems), maxProblems)]...)
	state.Limits.MoreProblems = len(limits.Problems) - len(state.Limits.Problems)
	state.Draining = l.options.Draining()
	if l.options.Redis != nil {
		state.Redis = l.options.Redis()
	}
	if l.options.Candidate != nil {
		state.Candidate = l.options.Candidate()
	}
	state.Replicas = replicas
	recorder := l.options.Recorder
	var rejectedFiles map[string]string
	if l.options.RejectedFiles != nil {
		rejectedFiles = l.options.RejectedFiles()
	}
	state.setSummary(now, signals{
		rejectedFiles: rejectedFiles, unmatchedKeys: l.topKeys(nil).Unmatched, figures: l.history.steps, denials: l.denials.alarm, ruleDenials: l.ruleDenials,
		lastLoss: time.Unix(0, recorder.lastLoss.Load()), lastRefusal: recorder.lastRefusal.Load(),
	}, fleetNotes)
	return state
}

func (l *Live) ruleList() RuleList {
	list := RuleList{Total: l.limitsState.Limits.Rules, Shown: []Rule{}}
	paths, hiddenRules := l.traffic.busiestRules(maxRules)
	list.More, list.Quiet = hiddenRules, len(l.rules.rules)-hiddenRules
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

func (l *Live) refreshLimits() {
	config := l.options.Store.Load()
	if config == l.rules.config && l.overrides.Shown != nil {
		return
	}
	l.limitsState = State{Backend: l.options.Backend, ShadowMode: l.options.ShadowMode, Limits: Limits{Domains: []string{}}}
	if state := &l.limitsState; config != nil {
		const maxShown = 5
		switches := config.OffSwitches()
		for _, o := range switches[:min(len(switches), maxShown)] {
			state.SwitchedOff = append(state.SwitchedOff, o.Path+o.Notes.String())
		}
		if len(switches) > maxShown {
			state.SwitchedOff = append(state.SwitchedOff, "and more")
		}
		state.ShadowMode = config.IsShadow(l.options.ShadowMode)
		state.Limits.Loaded, state.Limits.Hash, state.Limits.Rules = true, config.Hash(), config.RuleCount()
		for _, d := range config.Domains() {
			state.Limits.Domains = append(state.Limits.Domains, d.Name)
		}
	}
	authors := map[string]string{} // the key is the target of the override
	l.overrides = OverrideList{Shown: []Override{}}
	if l.options.Overrides != nil {
		overrides := l.options.Overrides()
		l.overrides = OverrideList{Enabled: true, Shown: append([]Override{}, overrides[:min(len(overrides), maxOverrides)]...), More: max(len(overrides)-maxOverrides, 0)}
		for _, o := range overrides {
			authors[o.Target] = o.Author
		}
	}
	l.rules = newRuleIndex(config, authors)
}

const maxFoundRules = 500

// Rules returns the rules with a path or a limit that contains text. Upper and lower case are the same. Rules returns
// the first 500 of these rules in file order, also the quiet rules, and the number of further rules.
func (l *Live) Rules(text string) (rules []Rule, hiddenRules int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.viewedAt = time.Now()
	l.refreshLimits()
	rules, hiddenRules = l.rules.search(text, maxFoundRules)
	for i := range rules {
		l.traffic.setTraffic(&rules[i], &l.history.stepClock)
	}
	return rules, hiddenRules
}

// Rule returns the rule with this path, and its busiest keys. isKnown is false if the rule is not in force and had no
// hits in the last five minutes.
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
