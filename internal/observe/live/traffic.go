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
	lastReading uint64                  // the number of calls of addCounts; a call is a reading
}

// ruleTraffic is the traffic of a rule. Each limit of a rule counts the same hits, so addCounts adds the hits of only
// one limit: the limit with the most denied hits.
type ruleTraffic struct {
	totals      []limitTotal // the counts of each limit at the last reading
	lastReading uint64       // the number of the last reading that had the rule

	stepHits hits   // the hits in the step in progress
	points   []hits // the hits per second in past steps, the newest last; nil for a quiet rule

	// stepUse is the highest use of a limit in the step in progress. lastStepUse is the highest use in the previous step.
	// 0 means that the use is unknown.
	stepUse, lastStepUse float64
}

// limitTotal has the hits on one limit since the process started.
type limitTotal struct {
	limit                    string
	ok, near, denied, shadow uint64
}

const maxHistories = 5000 // bounds the rules that keep all points of five minutes; further rules keep only their last point

// hits has the numbers of hits in a span of time, or the hits per second. Hits in near are also in ok.
type hits struct{ ok, near, denied, shadow float32 }

func (h *hits) add(other hits) {
	h.ok += other.ok
	h.near += other.near
	h.denied += other.denied
	h.shadow += other.shadow
}

// perSecond returns the hits per second. h has the hits of the given number of seconds.
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
	currentRule := &ruleTraffic{} // the rule of the last limit that counts has yielded
	var newHits hits              // the most hits on a limit of currentRule
	for limitCounts := range counts {
		ruleOfLimit := t.rule(limitCounts.Rule)
		if ruleOfLimit != currentRule {
			currentRule.stepHits.add(newHits)
			currentRule, newHits = ruleOfLimit, hits{}
		}
		ruleOfLimit.lastReading = t.lastReading
		total := limitTotal{limit: limitCounts.Limit, ok: limitCounts.WithinLimit, near: limitCounts.NearLimit, denied: limitCounts.OverLimit - limitCounts.ShadowHits, shadow: limitCounts.ShadowHits}
		lastTotal := ruleOfLimit.lastTotal(limitCounts.Limit)
		limitHits := hits{
			ok: increase(total.ok, lastTotal.ok), near: increase(total.near, lastTotal.near),
			denied: increase(total.denied, lastTotal.denied), shadow: increase(total.shadow, lastTotal.shadow),
		}
		*lastTotal = total
		if limitHits.compare(newHits) > 0 {
			newHits = limitHits
		}
	}
	currentRule.stepHits.add(newHits)
	if endsStep {
		t.endStep(float32(stepLength))
	}
	for path, rule := range t.rules {
		if rule.lastReading != t.lastReading && rule.stepUse+rule.lastStepUse == 0 { // counts no longer yields the rule
			delete(t.rules, path)
		}
	}
}

// endStep appends a point to each rule for a step of the given number of seconds. If maxHistories rules have several points,
// the new point of a further rule replaces its only point.
func (t *traffic) endStep(seconds float32) {
	historyCount := 0 // the number of rules with several points
	for _, rule := range t.rules {
		if len(rule.points) > 1 {
			historyCount++
		}
	}
	for _, rule := range t.rules {
		point := rule.stepHits.perSecond(seconds)
		rule.stepHits = hits{}
		rule.stepUse, rule.lastStepUse = 0, rule.stepUse
		switch {
		case rule.points == nil && point == hits{}:
			continue
		case len(rule.points) == 1 && historyCount < maxHistories:
			historyCount++
		case len(rule.points) == 1:
			rule.points = rule.points[:0]
		}
		rule.points = append(rule.points, point)
		rule.points = slices.Delete(rule.points, 0, max(len(rule.points)-historySteps, 0))
		if rule.isQuiet() {
			rule.points = nil
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

func (r *ruleTraffic) lastTotal(limit string) *limitTotal {
	i := slices.IndexFunc(r.totals, func(t limitTotal) bool { return t.limit == limit })
	if i < 0 {
		i = len(r.totals)
		r.totals = append(r.totals, limitTotal{limit: limit})
	}
	return &r.totals[i]
}

// sum adds up the rates of all steps in the last five minutes. Only comparisons of rules need the sum.
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
		return Value(clock.ratePerSecond(float64(stepHits), float64(lastRate)*clock.lastStepSeconds))
	}
	stepHits := r.stepHits
	return Rates{OK: rate(stepHits.ok, lastRates.ok), Near: rate(stepHits.near, lastRates.near), Denied: rate(stepHits.denied, lastRates.denied), Shadow: rate(stepHits.shadow, lastRates.shadow)}
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
	storedTraffic := t.rules[rule.Path]
	if storedTraffic == nil {
		return
	}
	if use := max(storedTraffic.stepUse, storedTraffic.lastStepUse); use > 0 {
		rule.Use = Value(use)
	}
	rule.Rates = storedTraffic.rates(clock)
	for _, p := range storedTraffic.points {
		rule.OKPoints = append(rule.OKPoints, Value(p.ok+p.shadow))
		rule.DeniedPoints = append(rule.DeniedPoints, Value(p.denied))
	}
}

// mostDeniedRule returns the path of the rule with the most denied hits in the last step, or "RULE" if no rule denies hits.
func (t *traffic) mostDeniedRule() string {
	path, mostDenied := "RULE", float32(0)
	for p, rule := range t.rules {
		if n := len(rule.points); n > 0 && rule.points[n-1].denied > mostDenied {
			path, mostDenied = p, rule.points[n-1].denied
		}
	}
	return path
}

// busiestRules returns the paths of the n busiest rules, in the order of hits.compare, and the number of further rules with
// hits in the last five minutes.
func (t *traffic) busiestRules(n int) (paths []string, moreRules int) {
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
