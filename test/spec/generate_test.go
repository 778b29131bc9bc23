package spec

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// trace is a story of calls. It depends on its seed only.
type trace struct {
	seed     uint64
	row      row
	settings settings
	versions []limits // the limits at the start, and those of each reload
	start    int64    // time of the first step, in microseconds since 1970
	steps    []step
}

// step is one event of a trace. Exactly one of the fields after at has an effect.
type step struct {
	at      int64 // since the start
	request *request
	replica int
	calls   int  // the request is sent that often, at once; 0 means once
	version int  // of the limits that come into force; 0 is no reload
	outage  bool // starts or ends an outage
}

// String returns the steps, one a line.
func (t *trace) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s; SHADOW_MODE=%v QUOTA_MODE=%v\n", t.seed, t.row, t.settings.shadowMode, t.settings.quotaMode)
	for i, version := range t.versions {
		isUsed := i == 0 || slices.ContainsFunc(t.steps, func(s step) bool { return s.version == i })
		if !isUsed {
			continue
		}
		fmt.Fprintf(&b, "limits %d:\n%s", i, version.yaml("shop"))
		for _, o := range version.overrides {
			fmt.Fprintf(&b, "override %s=%s: %s\n", o.target.key, o.target.value, o.json())
		}
	}
	for i, s := range t.steps {
		fmt.Fprintf(&b, "step %d at %d + %d µs: %s\n", i, t.start, s.at, s)
	}
	return b.String()
}

// String returns the step in short.
func (s step) String() string {
	switch {
	case s.version > 0:
		return fmt.Sprintf("reload of limits %d", s.version)
	case s.request == nil:
		return fmt.Sprintf("outage %v", s.outage)
	case s.calls > 0:
		return fmt.Sprintf("%d calls at once: %s", s.calls, s.request)
	}
	return fmt.Sprintf("replica %d: %s", s.replica, s.request)
}

// generator draws a trace.
type generator struct {
	*rand.Rand
	settings *settings
	trace    *trace
	limits   limits
	now      int64 // since the start
}

// virtualStart is later than any real time, see replica. It is a Thursday, so it starts a week of the epoch.
const virtualStart = 2_840_140_800 * second // 2060-01-01

func newTrace(seed uint64, rows []row) *trace {
	t := &trace{seed: seed, row: rows[seed%uint64(len(rows))]}
	t.settings = t.row.settings()
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 24)), settings: &t.settings, trace: t}
	t.settings.shadowMode = t.settings.shadow && g.isTrue(0.2)
	t.settings.quotaMode = t.settings.quota && g.isTrue(0.3)
	t.start = virtualStart + g.Int64N(86_400*second)
	g.drawRules()
	t.versions = []limits{g.limits}
	for n := 4 + g.IntN(9); len(t.steps) < n; {
		g.drawStep()
	}
	return t
}

func (g *generator) isTrue(probability float64) bool { return g.Float64() < probability }

func pick[T any](g *generator, all ...T) T { return all[g.IntN(len(all))] }

var values = []string{"v1", "v2", "vx", "w", "10.0.0.1"}

func (g *generator) drawRules() {
	usedIDs := map[string]bool{}
	for range 1 + g.IntN(4) {
		r := g.drawRule(pick(g, "a", "b", "c"))
		id := r.key + " " + r.value + " " + r.condition + " " + r.operand
		if usedIDs[id] {
			continue
		}
		usedIDs[id] = true
		g.limits.rules = append(g.limits.rules, r)
	}
}

func (g *generator) drawRule(key string) *rule {
	r := &rule{key: key}
	switch g.IntN(10) {
	case 0, 1:
		r.value = pick(g, values...)
	case 2, 3:
		r.value = pick(g, "v*", "*", "*1")
		r.shareThreshold = g.isTrue(0.5)
	case 4:
		r.condition = pick(g, "cidr", "in", "prefix", "regex", "not-prefix")
		r.operand = map[string]string{"cidr": "10.0.0.0/8", "in": "v1, vx", "prefix": "v", "regex": "v[0-9]", "not-prefix": "v"}[r.condition]
		r.shareThreshold = g.isTrue(0.5)
	}
	if g.isTrue(0.1) {
		r.children = []*rule{g.drawRule("n")}
		r.children[0].children = nil
		if g.isTrue(0.5) {
			return r
		}
	}
	if g.isTrue(0.05) {
		return r
	}
	g.drawLimits(r)
	r.shadow = g.settings.shadow && g.isTrue(0.3)
	r.quota = g.settings.quota && g.isTrue(0.5)
	r.noRefunds = g.isTrue(0.05) && !r.hasHolds()
	if g.isTrue(0.1) {
		r.maxHits = 2 + g.Int64N(2)
	}
	return r
}

func (r *rule) hasHolds() bool {
	return slices.ContainsFunc(r.limits, func(l limit) bool { return l.algorithm == "concurrency" })
}

func (g *generator) drawLimits(r *rule) {
	if g.isTrue(0.05) {
		r.limits = []limit{{unlimited: true}}
		return
	}
	for i := range 1 + g.IntN(2) {
		l := g.drawLimit()
		if i == 1 && l.algorithm == r.limits[0].algorithm && l.window() == r.limits[0].window() {
			return // both would have one counter
		}
		if g.isTrue(0.15) {
			l.name = fmt.Sprintf("%s%d", r.key, i)
		}
		if g.isTrue(0.05) {
			l.replaces = []string{pick(g, "a0", "b0", "c0", "a1")}
			l.replaces = slices.DeleteFunc(l.replaces, func(name string) bool { return name == l.name })
		}
		r.limits = append(r.limits, l)
	}
}

func (g *generator) drawLimit() limit {
	l := limit{algorithm: pick(g, "fixed_window", "sliding_window", "sliding_log", "token_bucket", "first_hit_window", "concurrency"), multiplier: 1}
	if l.algorithm == "concurrency" && g.settings.outage {
		l.algorithm = "fixed_window" // the reference does not know the holds of an outage
	}
	l.requests = 1 + g.Int64N(5)
	if g.isTrue(0.03) {
		l.requests = 0
	}
	l.chargeDenied = l.algorithm == "fixed_window"
	if g.isTrue(0.25) {
		l.chargeDenied = !l.chargeDenied
	}
	switch l.unit = pick(g, "second", "second", "minute", "hour", "day", "millisecond"); l.unit {
	case "second":
		l.multiplier = pick[int64](g, 1, 1, 10)
		l.period = second
	case "minute":
		l.multiplier = pick[int64](g, 1, 15)
		l.period = 60 * second
	case "hour":
		l.period = 3600 * second
	case "day":
		l.period = 86_400 * second
	case "millisecond":
		l.multiplier = 250
		l.period = second / 1000
	}
	l.period *= l.multiplier
	switch l.algorithm {
	case "token_bucket":
		if g.isTrue(0.4) && l.requests > 0 {
			l.burst = 1 + g.Int64N(8)
		}
	case "concurrency":
		l.period = pick[int64](g, 1, 30) * second
		l.chargeDenied = false
	}
	canLease := (l.algorithm == "fixed_window" || l.algorithm == "token_bucket") && l.unit != "millisecond"
	switch {
	case g.settings.leases && canLease && g.isTrue(0.7):
		l.requests, l.burst, l.lease, l.leaseWaste = 10+g.Int64N(30), 0, true, pick(g, 0.5, 0.2)
	case g.isTrue(0.1):
		l.instance = true
	}
	l.disabled = g.isTrue(0.04)
	return l
}

// drawStep adds a step, or a few steps that belong together.
func (g *generator) drawStep() {
	g.pass()
	settings := g.settings
	switch {
	case settings.reload && g.isTrue(0.15):
		g.drawChange()
	case settings.leases && g.isTrue(0.3):
		g.drawRush()
	case settings.outage && g.isTrue(0.2):
		g.add(step{outage: true})
		for range 1 + g.IntN(4) {
			g.add(step{request: g.drawRequest(), replica: g.IntN(settings.replicas)})
		}
		g.add(step{outage: false})
	case settings.hasCallsAtOnce && g.isTrue(0.25):
		request := g.drawRequest()
		request.holdID = ""
		for i := range request.descriptors {
			request.descriptors[i].hits = 1
		}
		g.add(step{request: request, calls: 2 + g.IntN(6)})
		for i := range settings.replicas { // what is remembered is true
			probe := *request
			probe.descriptors = []descriptor{pick(g, request.descriptors...)}
			g.add(step{request: &probe, replica: i})
		}
	default:
		request := g.drawRequest()
		for range 1 + g.IntN(3)*g.IntN(2) {
			g.add(step{request: request, replica: g.IntN(settings.replicas)})
		}
	}
}

// drawRush adds calls of one counter that are frequent enough for a lease.
func (g *generator) drawRush() {
	request := g.drawRequest()
	d := &request.descriptors[0]
	for _, rule := range g.limits.rules {
		if len(rule.limits) > 0 && rule.limits[0].lease {
			*d = descriptor{entries: []entry{{rule.key, g.valueOf(rule)}}}
		}
	}
	if d.hits = 1; g.isTrue(0.7) {
		request.descriptors = request.descriptors[:1]
	}
	replica := g.IntN(g.settings.replicas)
	for range 10 + g.IntN(20) {
		g.add(step{request: request, replica: replica})
		g.now += 3000
	}
}

func (g *generator) add(s step) {
	s.at = g.now
	g.trace.steps = append(g.trace.steps, s)
}

// pass lets time pass.
func (g *generator) pass() {
	period := int64(second)
	if rules := g.limits.rules; len(rules) > 0 {
		if r := pick(g, rules...); len(r.limits) > 0 && r.limits[0].period > 0 {
			period = pick(g, r.limits...).period
		}
	}
	now := g.trace.start + g.now
	switch n := g.IntN(20); {
	case n < 9:
	case n < 12:
		g.now += g.Int64N(1000)
	case n < 14:
		g.now += g.Int64N(2 * second)
	case n < 17:
		g.now += max(period-now%period+pick[int64](g, -1, 0, 1), 0)
	case n < 19:
		g.now += g.Int64N(period + 1)
	default:
		g.now += g.Int64N(5*period/2 + 1)
	}
}

func (g *generator) drawRequest() *request {
	newRequest := &request{acquire: g.settings.acquire && g.isTrue(0.6)}
	for range pick(g, 1, 1, 2, 3) {
		newRequest.descriptors = append(newRequest.descriptors, g.drawDescriptor())
	}
	// A denied group of several hits can renew a hold, or not.
	if g.isTrue(0.3) && !g.settings.allOrNone && (!newRequest.acquire || g.isSingleHit(newRequest)) {
		newRequest.holdID = pick(g, "h1", "h2")
	}
	return newRequest
}

// isSingleHit reports whether one limit decides the request.
func (g *generator) isSingleHit(q *request) bool {
	_, hits, _ := (&reference{limits: g.limits}).match(q)
	return len(hits) == 1
}

func (g *generator) drawDescriptor() descriptor {
	drawn := descriptor{hits: 1}
	switch n := g.IntN(100); {
	case n < 72:
	case n < 80:
		drawn.hits = 0
	case n < 91:
		drawn.hits = 2 + g.Int64N(3)
	case n < 99:
		drawn.hits = -1 - g.Int64N(3)
	default:
		drawn.hits = 100
	}
	if g.isTrue(0.04) {
		drawn.entries = []entry{{pick(g, "a", "b", "z"), pick(g, values...)}}
		if g.isTrue(0.5) {
			drawn.ownLimit = &limit{algorithm: "fixed_window", requests: g.Int64N(4), unit: "minute", multiplier: 1, period: 60 * second, chargeDenied: true}
		}
		return drawn
	}
	r := pick(g, g.limits.rules...)
	drawn.entries = []entry{{r.key, g.valueOf(r)}}
	if len(r.children) > 0 && g.isTrue(0.7) {
		drawn.entries = append(drawn.entries, entry{"n", g.valueOf(r.children[0])})
	}
	return drawn
}

// valueOf returns a value that the rule often matches.
func (g *generator) valueOf(r *rule) string {
	if r.value != "" && !strings.Contains(r.value, "*") {
		return r.value
	}
	if g.isTrue(0.7) {
		return "v1"
	}
	return pick(g, values...)
}

// drawChange adds a reload of changed limits or overrides.
func (g *generator) drawChange() {
	changedLimits := limits{overrides: slices.Clone(g.limits.overrides)}
	for _, rule := range g.limits.rules {
		changedLimits.rules = append(changedLimits.rules, rule.clone())
	}
	g.limits = changedLimits
	r := pick(g, changedLimits.rules...)
	if g.isTrue(0.4) {
		g.drawOverride(r)
	} else {
		g.changeRule(r)
	}
	g.trace.versions = append(g.trace.versions, g.limits)
	g.add(step{version: len(g.trace.versions) - 1})
}

func (r *rule) clone() *rule {
	clone := *r
	clone.limits = slices.Clone(r.limits)
	clone.children = nil
	for _, child := range r.children {
		clone.children = append(clone.children, child.clone())
	}
	return &clone
}

func (g *generator) changeRule(r *rule) {
	for i := range r.limits {
		l := &r.limits[i]
		switch {
		case l.unlimited || l.requests == 0:
		case g.isTrue(0.6):
			l.requests = max(l.requests+g.Int64N(7)-3, 1)
		case l.burst > 0:
			l.burst = 1 + g.Int64N(8)
		case g.isTrue(0.2):
			l.disabled = !l.disabled
		case len(r.limits) == 1 && g.isTrue(0.5):
			name, replaces := l.name, l.replaces
			*l = g.drawLimit()
			r.noRefunds = false
			l.name, l.replaces = name, replaces
		}
	}
	r.shadow = g.settings.shadow && g.isTrue(0.5)
}

func (g *generator) drawOverride(r *rule) {
	if len(g.limits.overrides) > 0 {
		g.limits.overrides = nil
		return
	}
	isPlain := len(r.limits) == 1 && !r.limits[0].unlimited && r.limits[0].requests > 0 && len(r.children) == 0 && r.condition == "" && !strings.Contains(r.value, "*")
	if !isPlain {
		return
	}
	o := override{target: entry{r.key, r.value}}
	if r.value == "" && g.isTrue(0.5) {
		o.target.value = "v1"
	}
	switch g.IntN(4) {
	case 0:
		o.requests = 1 + g.Int64N(8)
	case 1:
		o.factor = pick(g, 0.5, 2.0, 3.0)
	case 2:
		o.disabled = true
	default:
		o.shadow = true
	}
	if found, _ := g.limits.find([]entry{{o.target.key, o.target.value}}); o.target.value != "" && found != r {
		return // another rule matches the value
	}
	g.limits.overrides = []override{o}
}
