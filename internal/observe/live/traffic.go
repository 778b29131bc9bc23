package live

import (
	"cmp"
	"iter"
	"slices"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

// traffic has the hits of each rule in the last five minutes.
type traffic struct {
	rules       map[string]*ruleTraffic
	lastReading uint64 // number of the last reading
}

// ruleTraffic is the traffic of a rule. A hit counts on each limit of its rule, so each reading adds
// the hits of only one limit: the limit with the most denied hits. A step is a point of the charts.
type ruleTraffic struct {
	totals      []limitTotal // of the last reading, one for each limit
	lastReading uint64       // number of the last reading with the rule

	stepHits hits   // of the step in progress
	points   []hits // hits per second of past steps, the newest last; nil for a quiet rule

	// The use of a limit is the part of it that is spent. stepUse is the highest use of a limit in
	// the step in progress, and oldStepUse in the step before. 0 is unknown.
	stepUse, oldStepUse float64
}

type limitTotal struct {
	limit                    string
	ok, near, denied, shadow uint64
}

const maxHistories = 5000 // rules with several points; further rules have a single point

// hits has the numbers of hits in a span of time. Hits in near are also in ok.
type hits struct{ ok, near, denied, shadow float32 }

func (h *hits) add(other hits) {
	h.ok += other.ok
	h.near += other.near
	h.denied += other.denied
	h.shadow += other.shadow
}

// per returns the hits in each unit of time, if h has the hits of n units.
func (h hits) per(n float32) hits { return hits{h.ok / n, h.near / n, h.denied / n, h.shadow / n} }

// compare returns a positive number if h has more denied hits than other, or else more hits.
func (h hits) compare(other hits) int {
	return cmp.Or(cmp.Compare(h.denied, other.denied), cmp.Compare(h.shadow, other.shadow), cmp.Compare(h.ok, other.ok))
}

// addCounts adds the counts of all limits. endsStep reports that a step of stepLength seconds ends.
func (t *traffic) addCounts(counts iter.Seq[metrics.RuleCounts], endsStep bool, stepLength float64) {
	t.lastReading++
	current := &ruleTraffic{} // the rule of the last counts
	var newHits hits          // of current
	for c := range counts {
		r := t.rule(c.Rule)
		if r != current {
			current.stepHits.add(newHits)
			current, newHits = r, hits{}
		}
		r.lastReading = t.lastReading
		total, last := limitTotal{c.Limit, c.WithinLimit, c.NearLimit, c.OverLimit - c.Shadow, c.Shadow}, r.lastTotal(c.Limit)
		added := hits{
			ok: increase(total.ok, last.ok), near: increase(total.near, last.near),
			denied: increase(total.denied, last.denied), shadow: increase(total.shadow, last.shadow),
		}
		*last = total
		if added.compare(newHits) > 0 {
			newHits = added
		}
	}
	current.stepHits.add(newHits)
	if endsStep {
		t.endStep(float32(stepLength))
	}
	for path, r := range t.rules {
		if r.lastReading != t.lastReading && r.stepUse+r.oldStepUse == 0 { // the rule is gone
			delete(t.rules, path)
		}
	}
}

// endStep appends a point to each rule for a step of that many seconds, unless there are maxHistories already.
func (t *traffic) endStep(seconds float32) {
	histories := 0
	for _, r := range t.rules {
		if len(r.points) > 1 {
			histories++
		}
	}
	for _, r := range t.rules {
		point := r.stepHits.per(seconds)
		r.stepHits = hits{}
		r.stepUse, r.oldStepUse = 0, r.stepUse
		switch {
		case r.points == nil && point == hits{}:
			continue
		case len(r.points) == 1 && histories < maxHistories:
			histories++
		case len(r.points) == 1:
			r.points = r.points[:0]
		}
		r.points = append(r.points, point)
		r.points = slices.Delete(r.points, 0, max(len(r.points)-historySteps, 0))
		if r.isQuiet() {
			r.points = nil
		}
	}
}

func (t *traffic) rule(path string) *ruleTraffic {
	r := t.rules[path]
	if r == nil {
		r = &ruleTraffic{}
		t.rules[path] = r
	}
	return r
}

// increase returns the growth of a counter. A counter that starts again counts from 0.
func increase(newCount, oldCount uint64) float32 {
	if newCount < oldCount {
		return float32(newCount)
	}
	return float32(newCount - oldCount)
}

// lastTotal returns the counts of the named limit at the last reading.
func (r *ruleTraffic) lastTotal(limit string) *limitTotal {
	i := slices.IndexFunc(r.totals, func(t limitTotal) bool { return t.limit == limit })
	if i < 0 {
		i = len(r.totals)
		r.totals = append(r.totals, limitTotal{limit: limit})
	}
	return &r.totals[i]
}

// sum returns the sum of the rates of all steps in the last five minutes, to compare rules.
func (r *ruleTraffic) sum() hits {
	sum := r.stepHits.per(stepSeconds)
	for _, p := range r.points {
		sum.add(p)
	}
	return sum
}

// isQuiet reports whether the rule had no hits in the last five minutes.
func (r *ruleTraffic) isQuiet() bool {
	s := r.sum()
	return s.ok+s.denied+s.shadow == 0
}

// rates returns the rates of a rule at the moment of clock.
func (r *ruleTraffic) rates(clock *stepClock) Rates {
	var last hits
	if len(r.points) > 0 {
		last = r.points[len(r.points)-1]
	}
	rate := func(now, last float32) Value {
		return Value(clock.perSecond(float64(now), float64(last)*clock.lastLength))
	}
	h := r.stepHits
	return Rates{OK: rate(h.ok, last.ok), Near: rate(h.near, last.near), Denied: rate(h.denied, last.denied), Shadow: rate(h.shadow, last.shadow)}
}

func (t *traffic) addUses(uses map[string]float64) {
	for path, use := range uses {
		r := t.rule(path)
		r.stepUse = max(r.stepUse, use)
	}
}

// setTraffic sets the traffic of rule at the moment of clock. The use is the highest of the last five to ten seconds.
func (t *traffic) setTraffic(rule *Rule, clock *stepClock) {
	rule.Use = Unknown
	r := t.rules[rule.Path]
	if r == nil {
		return
	}
	if use := max(r.stepUse, r.oldStepUse); use > 0 {
		rule.Use = Value(use)
	}
	rule.Rates = r.rates(clock)
	for _, p := range r.points {
		rule.OKPoints = append(rule.OKPoints, Value(p.ok+p.shadow))
		rule.DeniedPoints = append(rule.DeniedPoints, Value(p.denied))
	}
}

// busiest returns the n rules with the most denied hits, then the most hits, and the number of others with hits.
func (t *traffic) busiest(n int) (paths []string, otherCount int) {
	type ruleSum struct {
		path string
		hits
	}
	var all []ruleSum
	for path, r := range t.rules {
		if !r.isQuiet() {
			all = append(all, ruleSum{path, r.sum()})
		}
	}
	slices.SortFunc(all, func(a, b ruleSum) int { return cmp.Or(b.compare(a.hits), cmp.Compare(a.path, b.path)) })
	for _, r := range all[:min(len(all), n)] {
		paths = append(paths, r.path)
	}
	return paths, max(len(all)-n, 0)
}
