package metrics

import (
	"runtime"
	"sync"
	"time"
)

// limitTable has the series of all limits that had a hit. Calls wait for the lock, so no method holds the lock for long.
type limitTable struct {
	mu sync.Mutex

	limitsByRule map[string]*limitSeries // the first limit of each rule; the field next of a limit is the next limit
	configCount  uint32                  // the number of configurations since the start
}

const rulesBeforePause = 100 // after this number of rules, walk releases the lock for a moment, so that calls can go on

// find returns the limit with this name, or nil. The caller holds the lock.
func (t *limitTable) find(name limitName) *limitSeries {
	l := t.limitsByRule[name.rule]
	for l != nil && l.name != name {
		l = l.next
	}
	return l
}

// findOrAdd returns the limit with this name. If there is no such limit, findOrAdd adds the result of create.
func (t *limitTable) findOrAdd(name limitName, create func() *limitSeries) *limitSeries {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.find(name)
	if l == nil {
		l = create()
		l.next, l.config = t.limitsByRule[name.rule], t.configCount
		t.limitsByRule[name.rule] = l
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

// markRemoved marks the limits that are not in the newest configuration as removed at now.
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

// walk deletes the limits that were removed more than removedRuleTTL before now, and calls visit with each remaining limit.
// walk holds the lock when it calls visit.
func (t *limitTable) walk(now time.Time, visit func(*limitSeries)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	visitedRules := 0
	for rule, firstLimit := range t.limitsByRule {
		firstRemainingLimit := firstLimit.deleteOldLimits(now)
		for l := firstRemainingLimit; l != nil; l = l.next {
			visit(l)
		}
		switch {
		case firstRemainingLimit == nil:
			delete(t.limitsByRule, rule)
		case firstRemainingLimit != firstLimit:
			t.limitsByRule[rule] = firstRemainingLimit
		}
		if visitedRules++; visitedRules%rulesBeforePause == 0 {
			t.mu.Unlock()
			runtime.Gosched()
			t.mu.Lock()
		}
	}
}

// deleteOldLimits deletes old limits from the list that starts with l, and the series of idle values. It returns the
// first limit of the remaining list.
func (l *limitSeries) deleteOldLimits(now time.Time) *limitSeries {
	if l == nil {
		return nil
	}
	next := l.next.deleteOldLimits(now)
	if l.removedAt != 0 && now.UnixNano()-l.removedAt >= int64(removedRuleTTL) {
		return next
	}
	l.next = next
	if v := l.valueSeries; v != nil && v.values.isFull() && now.Sub(v.checkedAt) >= idleValueTTL {
		v.deleteIdleValues(now)
	}
	return l
}
