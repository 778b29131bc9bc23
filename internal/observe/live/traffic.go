package live

import (
	"cmp"
	"iter"
	"slices"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

// traffic has the hits of each rule in the last five minutes.
type traffic struct {
	rules       map[string]*ruleTraffic // the key is the path of the rule
	lastReading uint64                  // the number of the last call of addCounts, from 1 on
}

// ruleTraffic is the traffic of a rule. Each limit of a rule counts the same hits, so addCounts adds the hits of only
// one limit: the limit with the most denied hits.
type ruleTraffic struct {
	totals      []limitTotal // the counts of each limit at the last reading
	lastReading uint64       // the number of the last reading that had the rule

	stepHits hits   // the hits in the step in progress
	points   []hits // the hits per second in past steps, the newest last; nil for a quiet rule

	// stepUse is the highest use of a limit in the step in progress, and oldStepUse in the step
	// before. 0 means that the use is unknown.
	stepUse, oldStepUse float64
}

// limitTotal has the hits on one limit since the process started.
type limitTotal struct {
	limit                    string
	ok, near, denied, shadow uint64
}

const maxHistories = 5000 // so many rules keep all points of five minutes; further rules keep only their last point

// hits has the numbers of hits in a span of time, or the hits per second. Hits in near are also in ok.
type hits struct{ ok, near, denied, shadow float32 }

func (h *hits) add(other hits) {
	h.ok += other.ok
	h.near += other.near
	h.denied += other.denied
	h.shadow += other.shadow
}

// perSecond returns the hits per second. h has the hits of that many seconds.
func (h hits) perSecond(seconds float32) hits {
	return hits{h.ok / seconds, h.near / seconds, h.denied / seconds, h.shadow / seconds}
}

// compare returns a positive number if h has more denied hits than other. If both have as many, compare compares the
// hits that only shadow mode admitted, and then the other admitted hits.
func (h hits) compare(other hits) int {
	return cmp.Or(cmp.Compare(h.denied, other.denied), cmp.Compare(h.shadow, other.shadow), cmp.Compare(h.ok, other.ok))
}

// addCounts adds the hits since the last reading. counts yields the hits on each limit since the process started. If
// endsStep is true, a step of stepLength seconds ends.
func (t *traffic) addCounts(counts iter.Seq[metrics.RuleCounts], endsStep bool, stepLength float64) {
	t.lastReading++
	currentRule := &ruleTraffic{} // the rule whose limits counts yields now
	var newHits hits              // the most hits on a limit of currentRule
	for c := range counts {
		r := t.rule(c.Rule)
		if r != currentRule {
			currentRule.stepHits.add(newHits)
			currentRule, newHits = r, hits{}
		}
		r.lastReading = t.lastReading
		total, last := limitTotal{c.Limit, c.WithinLimit, c.NearLimit, c.OverLimit - c.Shadow, c.Shadow}, r.lastTotal(c.Limit)
		limitHits := hits{
			ok: increase(total.ok, last.ok), near: increase(total.near, last.near),
			denied: increase(total.denied, last.denied), shadow: increase(total.shadow, last.shadow),
		}
		*last = total
		if limitHits.compare(newHits) > 0 {
			newHits = limitHits
		}
	}
	currentRule.stepHits.add(newHits)
	if endsStep {
		t.endStep(float32(stepLength))
	}
	for path, r := range t.rules {
		if r.lastReading != t.lastReading && r.stepUse+r.oldStepUse == 0 { // counts no longer yields the rule
			delete(t.rules, path)
		}
	}
}

// endStep appends a point to each rule for a step of that many seconds. If maxHistories rules have several points, the
// new point of a further rule replaces its only point.
func (t *traffic) endStep(seconds float32) {
	histories := 0 // the number of rules with several points
	for _, r := range t.rules {
		if len(r.points) > 1 {
			histories++
		}
	}
	for _, r := range t.rules {
		point := r.stepHits.perSecond(seconds)
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

// increase returns the growth of a counter. A counter that is lower than before has started again from 0.
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

// sum returns the sum of the rates of all steps in the last five minutes. The sum serves only to compare rules.
func (r *ruleTraffic) sum() hits {
	sum := r.stepHits.perSecond(stepSeconds)
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

// rates returns the hits per second of a rule in the last five seconds.
func (r *ruleTraffic) rates(clock *stepClock) Rates {
	var lastRates hits
	if len(r.points) > 0 {
		lastRates = r.points[len(r.points)-1]
	}
	rate := func(stepHits, lastRate float32) Value {
		return Value(clock.perSecond(float64(stepHits), float64(lastRate)*clock.lastLength))
	}
	h := r.stepHits
	return Rates{OK: rate(h.ok, lastRates.ok), Near: rate(h.near, lastRates.near), Denied: rate(h.denied, lastRates.denied), Shadow: rate(h.shadow, lastRates.shadow)}
}

func (t *traffic) addUses(uses map[string]float64) {
	for path, use := range uses {
		r := t.rule(path)
		r.stepUse = max(r.stepUse, use)
	}
}

// setTraffic sets the rates, the points and the use of rule. The use is the highest use in the last five to ten seconds.
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

// busiest returns the paths of the n busiest rules, in the order of hits.compare, and the number of further rules with
// hits in the last five minutes.
func (t *traffic) busiest(n int) (paths []string, otherCount int) {
	type ruleSum struct {
		path string
		hits
	}
	var sums []ruleSum
	for path, r := range t.rules {
		if !r.isQuiet() {
			sums = append(sums, ruleSum{path, r.sum()})
		}
	}
	slices.SortFunc(sums, func(a, b ruleSum) int { return cmp.Or(b.compare(a.hits), cmp.Compare(a.path, b.path)) })
	for _, s := range sums[:min(len(sums), n)] {
		paths = append(paths, s.path)
	}
	return paths, max(len(sums)-n, 0)
}
