package metrics

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// limitTable has the series of all limits that had a hit. Calls wait for the lock, so no method holds the lock for long.
type limitTable struct {
	mu sync.Mutex

	limitsByRule map[string][]*limitSeries // the key is the path of the rule
	configCount  uint32                    // the number of configurations since the start
}

const rulesBeforePause = 100 // after this number of rules, walk releases the lock for a moment, so that calls can go on

// find returns the limit with this name, or nil. The caller holds the lock.
func (t *limitTable) find(name limitName) *limitSeries {
	for _, l := range t.limitsByRule[name.rule] {
		if l.name == name {
			return l
		}
	}
	return nil
}

// findOrAdd returns the limit with this name. If there is no such limit, findOrAdd adds the result of create.
func (t *limitTable) findOrAdd(name limitName, create func() *limitSeries) *limitSeries {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.find(name)
	if l == nil {
		l = create()
		l.config = t.configCount
		t.limitsByRule[name.rule] = append(t.limitsByRule[name.rule], l)
	}
	return l
}

// beginConfig begins the next configuration. Limits that calls add from now on are a part of it.
func (t *limitTable) beginConfig() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.configCount++
}

// keep marks the limit with this name as a part of the newest configuration, and returns the limit. If there is no such
// limit, keep returns nil.
func (t *limitTable) keep(name limitName) *limitSeries {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.find(name)
	if l != nil {
		l.config, l.removedAt = t.configCount, 0
	}
	return l
}

func (t *limitTable) markRemoved(now time.Time) {
	t.walk(now, func(l *limitSeries) {
		if l.config != t.configCount && l.removedAt == 0 {
			l.removedAt = now.UnixNano()
		}
	})
}

// allLimits returns all limits. The limits of a rule follow each other.
func (t *limitTable) allLimits(now time.Time) []*limitSeries {
	t.mu.Lock()
	limits := make([]*limitSeries, 0, len(t.limitsByRule))
	t.mu.Unlock()
	t.walk(now, func(l *limitSeries) { limits = append(limits, l) })
	return limits
}

// walk deletes the limits that were removed more than removedRuleTTL before now, and the series of idle values. It calls
// visit with each remaining limit. walk holds the lock when it calls visit.
func (t *limitTable) walk(now time.Time, visit func(*limitSeries)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	visitedRules := 0
	isOld := func(l *limitSeries) bool {
		return l.removedAt != 0 && now.UnixNano()-l.removedAt >= int64(removedRuleTTL)
	}
	for rule, limits := range t.limitsByRule {
		if slices.ContainsFunc(limits, isOld) {
			if limits = slices.DeleteFunc(limits, isOld); len(limits) == 0 {
				delete(t.limitsByRule, rule)
			} else {
				t.limitsByRule[rule] = limits
			}
		}
		for _, l := range limits {
			if v := l.valueSeries; v != nil && v.values.isFull() && now.Sub(v.checkedAt) >= idleValueTTL {
				v.deleteIdleValues(now)
			}
			visit(l)
		}
		if visitedRules++; visitedRules%rulesBeforePause == 0 {
			t.mu.Unlock()
			runtime.Gosched()
			t.mu.Lock()
		}
	}
}
