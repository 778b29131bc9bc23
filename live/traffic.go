package live

import (
	"cmp"
	"iter"
	"slices"
)

// traffic has the hits of each rule in the last five minutes.
type traffic struct {
	seconds [windowSeconds]float64 // of the last readings, the newest first
	rules   map[string]*ruleTraffic
	read    uint64 // number of the last reading

	histories int // the number of rules with several points

	// uses has the highest use of each rule by path. usesBefore is older than uses.
	uses, usesBefore map[string]float64
}

// ruleTraffic is the traffic of a rule. Each reading adds the hits on the limit with the
// most denied hits.
type ruleTraffic struct {
	totals []LimitCounts // of the last reading, one for each limit
	read   uint64        // number of the last reading with the rule

	window [windowSeconds]hits // of the last readings, the newest first
	step   hits                // of the step in progress
	points []hits              // of past steps, the newest last; nil for a quiet rule
}

// maxHistories bounds the rules with several points. Further rules have a single point, until
// one of the others is quiet.
const maxHistories = 5000

// hits are hits of some time.
type hits struct{ ok, near, denied, shadow float32 }

func (h *hits) add(other hits) {
	h.ok += other.ok
	h.near += other.near
	h.denied += other.denied
	h.shadow += other.shadow
}

// compare returns a positive number if h has more denied hits than other, or else more hits.
func (h hits) compare(other hits) int {
	return cmp.Or(cmp.Compare(h.denied, other.denied), cmp.Compare(h.shadow, other.shadow), cmp.Compare(h.ok, other.ok))
}

func newTraffic() *traffic { return &traffic{rules: map[string]*ruleTraffic{}} }

// add takes in the counts of all limits, seconds after the last counts. endsStep reports that
// a step of stepLength seconds ends.
func (t *traffic) add(counts iter.Seq[LimitCounts], seconds float64, endsStep bool, stepLength float64) {
	t.read++
	copy(t.seconds[1:], t.seconds[:])
	t.seconds[0] = seconds
	for _, r := range t.rules {
		copy(r.window[1:], r.window[:])
		r.window[0] = hits{}
	}
	for c := range counts {
		r := t.rules[c.Rule]
		if r == nil {
			r = &ruleTraffic{}
			t.rules[c.Rule] = r
		}
		r.read = t.read
		total := r.total(c.Limit)
		last := *total
		if c == last {
			continue
		}
		*total = c
		added := hits{
			ok: increase(c.OK, last.OK), near: increase(c.Near, last.Near),
			denied: increase(c.Denied, last.Denied), shadow: increase(c.Shadow, last.Shadow),
		}
		if added.compare(r.window[0]) > 0 {
			r.window[0] = added
		}
	}
	for path, r := range t.rules {
		t.histories -= r.histories()
		if r.read != t.read { // the rule is gone
			delete(t.rules, path)
			continue
		}
		r.step.add(r.window[0])
		if endsStep {
			r.endStep(float32(stepLength), t.histories < maxHistories)
		}
		t.histories += r.histories()
	}
	if endsStep {
		t.uses, t.usesBefore = nil, t.uses
	}
}

// increase returns the growth of a counter. A counter that starts again counts from 0.
func increase(now, before uint64) float32 {
	if now < before {
		return float32(now)
	}
	return float32(now - before)
}

// total returns the counts of the named limit at the last reading.
func (r *ruleTraffic) total(limit string) *LimitCounts {
	for i := range r.totals {
		if r.totals[i].Limit == limit {
			return &r.totals[i]
		}
	}
	r.totals = append(r.totals, LimitCounts{Limit: limit})
	return &r.totals[len(r.totals)-1]
}

// histories returns 1 if r has several points, else 0.
func (r *ruleTraffic) histories() int {
	if len(r.points) > 1 {
		return 1
	}
	return 0
}

// endStep appends a point for a step of that many seconds. If keepsHistory is false, a rule
// with a single point replaces the point.
func (r *ruleTraffic) endStep(seconds float32, keepsHistory bool) {
	point := hits{r.step.ok / seconds, r.step.near / seconds, r.step.denied / seconds, r.step.shadow / seconds}
	r.step = hits{}
	if r.points == nil && point == (hits{}) {
		return
	}
	if len(r.points) == 1 && !keepsHistory {
		r.points = r.points[:0]
	}
	r.points = append(r.points, point)
	r.points = slices.Delete(r.points, 0, max(len(r.points)-historySteps, 0))
	if !slices.ContainsFunc(r.points, func(h hits) bool { return h != hits{} }) {
		r.points = nil
	}
}

// sum returns a measure of the hits of the last five minutes.
func (r *ruleTraffic) sum() hits {
	sum := hits{r.step.ok / stepSeconds, r.step.near / stepSeconds, r.step.denied / stepSeconds, r.step.shadow / stepSeconds}
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
	var sum hits
	seconds := 0.0
	for i, s := range t.seconds {
		if seconds >= windowSeconds-0.5 {
			break
		}
		seconds += s
		sum.add(r.window[i])
	}
	if seconds == 0 {
		return Rates{}
	}
	rate := func(n float32) Value { return Value(float64(n) / seconds) }
	return Rates{OK: rate(sum.ok), Near: rate(sum.near), Denied: rate(sum.denied), Shadow: rate(sum.shadow)}
}

// addUses takes in the highest use of each rule.
func (t *traffic) addUses(uses map[string]float64) {
	if t.uses == nil {
		t.uses = uses
		return
	}
	for path, use := range uses {
		t.uses[path] = max(t.uses[path], use)
	}
}

// use returns the highest use of a rule in the last five to ten seconds.
func (t *traffic) use(path string) Value {
	use, known := t.uses[path]
	before, knownBefore := t.usesBefore[path]
	if !known && !knownBefore {
		return Unknown
	}
	return Value(max(use, before))
}

// describe sets the traffic of rule.
func (t *traffic) describe(rule *Rule) {
	rule.Use = t.use(rule.Path)
	r := t.rules[rule.Path]
	if r == nil {
		return
	}
	rule.Rates = t.rates(r)
	for _, p := range r.points {
		rule.OKPoints = append(rule.OKPoints, Value(p.ok+p.shadow))
		rule.DeniedPoints = append(rule.DeniedPoints, Value(p.denied))
	}
}

// busiest returns the paths of the n rules with the most denied hits, then the most hits,
// and the number of further rules that are not quiet.
func (t *traffic) busiest(n int) (paths []string, more int) {
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
