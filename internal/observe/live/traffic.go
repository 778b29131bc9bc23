package live

import (
	"cmp"
	"iter"
	"slices"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

// traffic has the hits of each rule in the last five minutes.
type traffic struct {
	spans       window // between the last readings
	rules       map[string]*ruleTraffic
	lastReading uint64 // number of the last reading

	historyCount int // the number of rules for which hasHistory returns true
}

// ruleTraffic is the traffic of a rule. A hit counts on each limit of its rule, so each reading adds
// the hits of only one limit: the limit with the most denied hits. A step is a point of the charts,
// and takes stepSeconds.
type ruleTraffic struct {
	totals      []limitTotal // of the last reading, one for each limit
	lastReading uint64       // number of the last reading with the rule

	latestHits  hits                     // of the newest span
	earlierHits *[windowSeconds - 1]hits // of the spans before, the newest first; nil if latestHits covers windowSeconds
	stepHits    hits                     // of the step in progress
	points      []hits                   // hits per second of past steps, the newest last; nil for a quiet rule

	// The use of a limit is the part of it that is spent. stepUse is the highest use of a limit in
	// the step in progress, and oldStepUse in the step before. 0 is unknown.
	stepUse, oldStepUse float64
}

// limitTotal has the hits on one limit of a rule at a reading.
type limitTotal struct {
	limit                    string
	ok, near, denied, shadow uint64
}

// maxHistories bounds the rules with several points. Further rules have a single point, until
// one of the others is quiet.
const maxHistories = 5000

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

func newTraffic() *traffic { return &traffic{rules: map[string]*ruleTraffic{}} }

// addCounts adds the counts of all limits. The last counts were added secondsSince ago. endsStep
// reports that a step of stepLength seconds ends.
func (t *traffic) addCounts(counts iter.Seq[metrics.RuleCounts], secondsSince float64, endsStep bool, stepLength float64) {
	t.lastReading++
	if t.spans.add(secondsSince) {
		for _, r := range t.rules {
			r.beginSpan(secondsSince)
		}
	}
	var current *ruleTraffic
	var newHits hits // of current
	for c := range counts {
		r := t.rule(c.Rule)
		if r != current {
			current.add(newHits)
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
	current.add(newHits)
	for path, r := range t.rules {
		if r.hasHistory() {
			t.historyCount--
		}
		if endsStep {
			r.endStep(float32(stepLength), t.historyCount < maxHistories)
			r.stepUse, r.oldStepUse = 0, r.stepUse
		}
		if r.lastReading != t.lastReading && r.stepUse+r.oldStepUse == 0 { // the rule is gone
			delete(t.rules, path)
			continue
		}
		if r.hasHistory() {
			t.historyCount++
		}
	}
}

// rule returns the traffic of the rule of that path.
func (t *traffic) rule(path string) *ruleTraffic {
	r := t.rules[path]
	if r == nil {
		r = &ruleTraffic{}
		t.rules[path] = r
	}
	return r
}

// add adds the hits of a reading. r can be nil.
func (r *ruleTraffic) add(h hits) {
	if r != nil {
		r.latestHits.add(h)
		r.stepHits.add(h)
	}
}

// beginSpan begins a span of that many seconds or more.
func (r *ruleTraffic) beginSpan(seconds float64) {
	switch {
	case coversWindow(seconds):
		r.earlierHits = nil
	case r.earlierHits == nil && r.latestHits == hits{}:
	default:
		if r.earlierHits == nil {
			r.earlierHits = new([windowSeconds - 1]hits)
		}
		copy(r.earlierHits[1:], r.earlierHits[:])
		r.earlierHits[0] = r.latestHits
	}
	r.latestHits = hits{}
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

// hasHistory reports whether r has several points.
func (r *ruleTraffic) hasHistory() bool { return len(r.points) > 1 }

// endStep appends a point for a step of that many seconds. If keepsHistory is false, a rule
// with a single point replaces the point.
func (r *ruleTraffic) endStep(seconds float32, keepsHistory bool) {
	point := r.stepHits.per(seconds)
	r.stepHits = hits{}
	if r.points == nil && point == (hits{}) {
		return
	}
	if len(r.points) == 1 && !keepsHistory {
		r.points = r.points[:0]
	}
	r.points = append(r.points, point)
	r.points = slices.Delete(r.points, 0, max(len(r.points)-historySteps, 0))
	if r.isQuiet() {
		r.points = nil
	}
}

// sum returns the sum of the rates of all steps in the last five minutes. It serves only to compare
// rules.
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

// rates returns the rates of a rule in the last seconds.
func (t *traffic) rates(r *ruleTraffic) Rates {
	spans, seconds := t.spans.recent()
	if seconds == 0 {
		return Rates{}
	}
	sum := r.latestHits
	if r.earlierHits != nil {
		for _, h := range r.earlierHits[:spans-1] {
			sum.add(h)
		}
	}
	rate := func(n float32) Value { return Value(float64(n) / seconds) }
	return Rates{OK: rate(sum.ok), Near: rate(sum.near), Denied: rate(sum.denied), Shadow: rate(sum.shadow)}
}

// addUses adds the highest use of each rule.
func (t *traffic) addUses(uses map[string]float64) {
	for path, use := range uses {
		r := t.rule(path)
		r.stepUse = max(r.stepUse, use)
	}
}

// highestUse returns the highest use in the last five to ten seconds.
func (r *ruleTraffic) highestUse() Value {
	if use := max(r.stepUse, r.oldStepUse); use > 0 {
		return Value(use)
	}
	return Unknown
}

// setTraffic sets the traffic of rule.
func (t *traffic) setTraffic(rule *Rule) {
	rule.Use = Unknown
	r := t.rules[rule.Path]
	if r == nil {
		return
	}
	rule.Use = r.highestUse()
	rule.Rates = t.rates(r)
	for _, p := range r.points {
		rule.OKPoints = append(rule.OKPoints, Value(p.ok+p.shadow))
		rule.DeniedPoints = append(rule.DeniedPoints, Value(p.denied))
	}
}

// busiest returns the paths of the n rules with the most denied hits, then the most hits,
// and the number of other rules that are not quiet.
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
