package spec

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// descriptor is a descriptor of a request.
type descriptor struct {
	entries  []entry
	hits     int64 // negative for a refund
	ownLimit *limit
}

// request is a call.
type request struct {
	descriptors []descriptor
	acquire     bool
	holdID      string
}

// hit is the part of a request that one limit decides.
type hit struct {
	descriptor int
	rule       *rule
	limit      *limit
	counter    string
	n          int64
	shadow     bool
	tooLarge   bool // above max_hits of the rule
	inGroup    bool // charged together with the other hits of the group, or not at all
}

// outcome is the decision of the real service about a hit.
type outcome struct {
	verdict
	source   string
	err      error
	duration int64 // real time of the call, in microseconds
}

// status is the answer to a descriptor.
type status struct {
	over      bool
	hasLimit  bool
	remaining int64
	wait      int64 // duration_until_reset

	hasMinWait bool // wait is only the least wait
}

// ledger has what is known about a counter. Uncertain charges are in most, but not in least.
type ledger struct {
	least *counter
	most  []*counter // by replica, because replicas remember denials

	unsureUntil int64  // until this time, denials can be too early
	waste       int64  // most permits that replicas may hold
	hasDenied   []bool // the replica has denied a hit and admitted none since

	// The fallback of each replica. known has the hits that Redis may have counted in its last answer to the
	// replica, and fallbackMost starts from this count.
	fallbackLeast, fallbackMost, known []*counter
	wasAsked                           bool // a replica has asked Redis
}

func (e *ledger) clone() *ledger {
	cloneAll := func(counters []*counter) (clones []*counter) {
		for _, c := range counters {
			clones = append(clones, c.clone())
		}
		return clones
	}
	return &ledger{e.least.clone(), cloneAll(e.most), e.unsureUntil, e.waste, slices.Clone(e.hasDenied), cloneAll(e.fallbackLeast), cloneAll(e.fallbackMost), cloneAll(e.known), e.wasAsked}
}

// notePeek notes that a replica has seen whether the counter has a hit left.
func (e *ledger) notePeek(l *limit, replica int, now int64) {
	e.hasDenied[replica] = e.hasDenied[replica] || !e.least.clone().take(l, now, 0, "").allowed
}

// adapt adapts the counters to a limit of another rate. A backend does this with each hit that it sees, also
// with hits that it does not charge.
func (e *ledger) adapt(l *limit, now int64) {
	e.least.forget(l, now)
	for _, c := range e.most {
		c.forget(l, now)
	}
}

// reference is the sequential service.
type reference struct {
	settings *settings
	limits   limits
	ledgers  map[string]*ledger
}

// ledger returns the ledger of a hit. Limits with scope instance have one for each replica.
func (r *reference) ledger(h *hit, replica int) *ledger {
	name := h.counter
	if h.limit.instance || r.settings.redis == "local" {
		name = fmt.Sprintf("replica %d %s", replica, name)
	}
	e := r.ledgers[name]
	if e == nil {
		e = &ledger{least: &counter{}, hasDenied: make([]bool, r.settings.replicas)}
		for range r.settings.replicas {
			e.most = append(e.most, &counter{})
			e.fallbackLeast = append(e.fallbackLeast, &counter{})
			e.fallbackMost = append(e.fallbackMost, &counter{})
			e.known = append(e.known, &counter{})
		}
		r.ledgers[name] = e
	}
	return e
}

// match returns the rules and the hits of a request. isRefused is true if a refund is not allowed.
func (r *reference) match(q *request) (rules []*rule, hits []hit, isRefused bool) {
	var names []string
	var replacedNames []string
	for i := range q.descriptors {
		d := &q.descriptors[i]
		found, name := r.limits.find(d.entries)
		if d.ownLimit != nil {
			found, name = &rule{limits: []limit{*d.ownLimit}}, ""
			for _, e := range d.entries {
				name += "|" + e.key + "=" + e.value
			}
		}
		rules, names = append(rules, found), append(names, name)
		if found == nil {
			continue
		}
		for j := range found.limits {
			if !found.limits[j].disabled {
				replacedNames = append(replacedNames, found.limits[j].replaces...)
			}
		}
	}
	for i, found := range rules {
		if found == nil {
			continue
		}
		hasHolds := slices.ContainsFunc(found.limits, func(l limit) bool { return l.algorithm == "concurrency" })
		for j := range found.limits {
			l := &found.limits[j]
			if l.unlimited || l.disabled || l.name != "" && slices.Contains(replacedNames, l.name) {
				continue
			}
			n := q.descriptors[i].hits
			if hasHolds && l.algorithm != "concurrency" {
				n = max(n, 0) // a release refunds nothing of another limit
			}
			if q.acquire {
				chargedLimit := *l
				chargedLimit.chargeDenied = false
				l = &chargedLimit
			}
			isRefused = isRefused || q.descriptors[i].hits < 0 && found.noRefunds
			hits = append(hits, hit{
				descriptor: i, rule: found, limit: l, n: n, shadow: found.shadow,
				counter:  fmt.Sprintf("%s %s %d %v", names[i], l.algorithm, l.window(), l.instance),
				tooLarge: found.maxHits > 0 && n > found.maxHits,
			})
		}
	}
	return rules, hits, isRefused
}

// window returns the part of a counter's name for the window.
func (l *limit) window() int64 {
	if l.algorithm == "concurrency" {
		return 0
	}
	return l.period
}

// inQuotaMode reports whether a descriptor with this rule denies only together with others. A rule whose
// limits are all replaced does not take part.
func (r *reference) inQuotaMode(found *rule, hasLimit bool) bool {
	isReplaced := func() bool {
		return !hasLimit && slices.ContainsFunc(found.limits, func(l limit) bool { return !l.unlimited && !l.disabled })
	}
	return r.settings.quotaMode || found != nil && found.quota && !isReplaced()
}

// isTooLarge reports whether max_hits denies the request, so nothing of it is charged.
func (r *reference) isTooLarge(rules []*rule, hits []hit) bool {
	quotas, quotasTooLarge := 0, 0
	for i, found := range rules {
		tooLarge := slices.ContainsFunc(hits, func(h hit) bool { return h.descriptor == i && h.tooLarge && !h.shadow })
		switch {
		case !r.inQuotaMode(found, slices.ContainsFunc(hits, func(h hit) bool { return h.descriptor == i })):
			if tooLarge {
				return true
			}
		case tooLarge:
			quotas++
			quotasTooLarge++
		default:
			quotas++
		}
	}
	return quotas > 0 && quotas == quotasTooLarge
}

// isDenied reports whether the request is denied, if these descriptors are over their limits.
func (r *reference) isDenied(rules []*rule, over []bool, hits []hit) bool {
	var hasLimit []int
	for _, h := range hits {
		hasLimit = append(hasLimit, h.descriptor)
	}
	quotas, quotasOver := 0, 0
	for i, found := range rules {
		switch {
		case !r.inQuotaMode(found, slices.Contains(hasLimit, i)):
			if over[i] {
				return true
			}
		case over[i]:
			quotas++
			quotasOver++
		default:
			quotas++
		}
	}
	return quotas > 0 && quotas == quotasOver
}

// decide checks the outcomes of a request, which the replica has answered at now, and charges the
// request. It returns what the statuses of the response must be, and whether the request is denied.
func (r *reference) decide(q *request, rules []*rule, hits []hit, outcomes []outcome, replica int, now int64) (statuses []status, denied bool, problems []string) {
	peeksOnly := r.isTooLarge(rules, hits)
	ledgersBefore := map[*ledger]*ledger{}
	for i := range hits {
		e := r.ledger(&hits[i], replica)
		switch outcomes[i].source {
		case "redis", "local":
			e.adapt(hits[i].limit, now)
		case "fallback":
			c := &check{reference: r, hit: &hits[i], ledger: e, replica: replica, now: now}
			c.startFromLastCount(r.share(hits[i].limit))
		}
		if ledgersBefore[e] == nil {
			ledgersBefore[e] = e.clone()
		}
	}
	r.formGroup(q, hits, peeksOnly)
	groupDenied := isGroupDenied(hits, outcomes)
	for i := range hits {
		h, got := &hits[i], &outcomes[i]
		e := r.ledger(h, replica)
		c := &check{reference: r, hit: h, outcome: got, ledger: e, replica: replica, now: now, holdID: q.holdID}
		switch {
		case h.tooLarge:
			if got.allowed || got.retry != neverPasses {
				c.problem("a hit above max_hits got %v", got.verdict)
			}
			e.notePeek(h.limit, replica, now)
		case peeksOnly:
			c.ledger = ledgersBefore[e].clone()
			c.peek()
			e.notePeek(h.limit, replica, now)
		case got.allowed && h.inGroup && groupDenied:
			c.ledger = ledgersBefore[e]
			isAlone := true // the charges of other hits can be refunded later
			for j := range hits {
				isAlone = isAlone && (j == i || r.ledger(&hits[j], replica) != e)
			}
			c.takeUncharged(isAlone)
			c.ledger = e
			c.charge() // later hits of the request may see this charge
		case !h.inGroup && groupDenied:
			// The hit may have seen the charges of the group, so only an admission is checked.
			c.ledger = ledgersBefore[e]
			if got.allowed {
				c.takeAdmitted()
			} else {
				c.charge()
			}
			c.ledger = e
			c.charge()
		default:
			c.groupDenied = h.inGroup && groupDenied
			c.take()
		}
		problems = append(problems, c.problems...)
	}
	if groupDenied { // a denied group charges nothing
		for e, old := range ledgersBefore {
			*e = *old
		}
		for i := range hits {
			h := &hits[i]
			switch {
			case h.inGroup && outcomes[i].allowed:
				r.noteUnsureUndo(h, &outcomes[i], replica, now)
				r.noteExtendedHold(q, hits, h, replica, now)
			case h.inGroup:
				r.ledger(h, replica).hasDenied[replica] = true
			}
		}
	}
	statuses, isOver := assemble(rules, hits, outcomes)
	denied = r.isDenied(rules, isOver, hits) && !r.settings.shadowMode
	if denied && q.acquire && !peeksOnly { // a denied call that waits charges nothing
		for i := range hits {
			h, got := &hits[i], &outcomes[i]
			isUndone := h.inGroup && groupDenied
			if got.allowed && !got.renewed && h.n > 0 && !isUndone && !h.tooLarge {
				h.n = -h.n
				c := &check{reference: r, hit: h, outcome: &outcome{verdict: verdict{allowed: true}, source: got.source}, ledger: r.ledger(h, replica), replica: replica, now: now, holdID: q.holdID, isUndo: true}
				c.charge()
				h.n = -h.n
			}
		}
	}
	if !denied || !q.acquire {
		r.raiseWaits(statuses, hits, outcomes)
	}
	return statuses, denied, problems
}

// raiseWaits raises the waits of denied descriptors: they include the waits for limits whose last hits the call
// has charged.
func (r *reference) raiseWaits(statuses []status, hits []hit, outcomes []outcome) {
	for i := range hits {
		h, st := &hits[i], &statuses[hits[i].descriptor]
		if !st.over || !outcomes[i].allowed {
			continue
		}
		isSure := !r.settings.leases && !r.settings.outage
		if isSure {
			st.wait = max(st.wait, roundWait(h.limit, outcomes[i].next))
		}
		st.hasMinWait = st.hasMinWait || !isSure || h.limit.algorithm == "token_bucket" // which can be a microsecond longer
	}
}

// formGroup marks the hits that are charged together: all hits of a call that waits, or all hits that are not
// in shadow mode. If quota mode or SHADOW_MODE can admit a call with a denied hit, the call forms no group.
func (r *reference) formGroup(q *request, hits []hit, peeksOnly bool) {
	isWaiting := q.acquire && !r.settings.shadowMode && !slices.ContainsFunc(hits, func(h hit) bool { return r.inQuotaMode(h.rule, true) })
	for i := range hits {
		h := &hits[i]
		h.inGroup = (isWaiting || r.settings.allOrNone && !h.shadow) && h.n > 0 && !h.tooLarge && !peeksOnly
	}
}

// isGroupDenied reports whether a hit of the group is denied, and not only in shadow mode.
func isGroupDenied(hits []hit, outcomes []outcome) bool {
	for i := range hits {
		if hits[i].inGroup && !hits[i].shadow && !outcomes[i].allowed {
			return true
		}
	}
	return false
}

// undoesCharges reports whether the request can charge hits for a moment and then refund them, so other calls
// can be denied at this moment.
func (r *reference) undoesCharges(q *request, hits []hit) bool {
	isGroup := q.acquire || r.settings.allOrNone
	isOneStep := r.settings.redis != "cluster" && !r.settings.perSecond
	names := map[string]bool{}
	for i := range hits {
		names[hits[i].counter] = true
		isOneStep = isOneStep && (hits[i].inGroup || hits[i].shadow && !q.acquire) && hits[i].limit.instance == hits[0].limit.instance
	}
	return isGroup && len(hits) > 1 && (!isOneStep || len(names) < len(hits))
}

// noteUnsureUndo notes that a charge may stay. If a group is charged in several steps, its refund leaves out
// windows that may have ended by the real clock.
func (r *reference) noteUnsureUndo(h *hit, got *outcome, replica int, now int64) {
	e := r.ledger(h, replica)
	hasSteps := r.settings.redis == "cluster" || r.settings.perSecond
	if hasSteps && e.least.clone().take(h.limit, now, h.n, "").reset <= got.duration {
		e.unsureUntil = now + 2*h.limit.period
	}
	for _, knownCounter := range e.known { // Redis may have counted the hit when it answered another call
		knownCounter.forget(h.limit, now)
		knownCounter.charge(h.limit, now, h.n)
	}
}

// noteExtendedHold notes that an anonymous hold may last longer. The call takes slots and gives them back, and a
// release without an id ends the hold that expires first.
func (r *reference) noteExtendedHold(q *request, hits []hit, h *hit, replica int, now int64) {
	if h.limit.algorithm == "concurrency" && q.holdID == "" && r.undoesCharges(q, hits) {
		e := r.ledger(h, replica)
		e.unsureUntil = max(e.unsureUntil, now+h.limit.period)
	}
}

// decideTotals checks the outcomes of a request that was sent several times at once. Call i went to
// replica i modulo the number of replicas. The order of the calls is not known, so decideTotals checks how
// many hits were admitted, and that no hit was denied that fits after all of them. The second check needs
// calls that undo no charges.
func (r *reference) decideTotals(q *request, rules []*rule, hits []hit, calls [][]outcome, now int64) (problems []string) {
	newCheck := func(call, i int) *check {
		replica := call % r.settings.replicas
		return &check{reference: r, hit: &hits[i], outcome: &calls[call][i], ledger: r.ledger(&hits[i], replica), replica: replica, now: now}
	}
	peeksOnly := r.isTooLarge(rules, hits)
	r.formGroup(q, hits, peeksOnly)
	var undoneChecks, denied []*check
	for call, outcomes := range calls {
		groupDenied := isGroupDenied(hits, outcomes)
		_, over := assemble(rules, hits, outcomes)
		isUndone := q.acquire && r.isDenied(rules, over, hits) && !r.settings.shadowMode
		for i := range hits {
			h, c := &hits[i], newCheck(call, i)
			switch {
			case peeksOnly || h.tooLarge:
			case h.inGroup && outcomes[i].allowed && groupDenied:
				r.noteUnsureUndo(h, c.outcome, c.replica, now)
				r.noteExtendedHold(q, hits, h, c.replica, now)
			case !outcomes[i].allowed:
				denied = append(denied, c)
			case isUndone:
				undoneChecks = append(undoneChecks, c)
			default:
				c.takeAdmitted()
				problems = append(problems, c.problems...)
			}
		}
	}
	for _, c := range denied {
		c.charge()
	}
	for _, c := range undoneChecks { // a release can end the hold of another call, so all are charged first
		if c.hit.limit.algorithm == "concurrency" {
			c.charge()
		}
	}
	for _, c := range undoneChecks {
		if c.hit.limit.algorithm == "concurrency" {
			h := *c.hit
			h.n = -h.n
			c.hit, c.isUndo = &h, true
			c.charge()
		}
	}
	for _, c := range denied {
		if !r.undoesCharges(q, hits) && c.outcome.source != "fallback" {
			c.peek()
			problems = append(problems, c.problems...)
		}
	}
	return problems
}

// add charges n admitted hits, even if the counter has no room for them.
func (c *counter) add(l *limit, now, n int64, id string) {
	switch {
	case n < 0:
		c.take(l, now, n, id)
	case l.algorithm == "concurrency":
		unboundedLimit := *l
		unboundedLimit.requests = math.MaxInt64 / 2
		c.take(&unboundedLimit, now, n, id)
	case n > 0:
		c.charge(l, now, n)
	}
}

// waste returns the most permits that replicas can hold.
func (r *reference) waste(e *ledger, l *limit) int64 {
	e.waste = max(e.waste, l.waste())
	return e.waste
}

// maxLeasedHits returns the hits of a limit that can be denied because of leases. Replicas can hold permits. And the
// bucket in Redis is smaller by the permits that replicas may hold, even if they hold none.
func (r *reference) maxLeasedHits(e *ledger, l *limit) int64 {
	if l.algorithm == "token_bucket" {
		return r.waste(e, l) + l.waste()
	}
	return r.waste(e, l)
}

// fallbackRatio is the share of a limit that each replica admits without Redis.
const fallbackRatio = 0.5

// share returns the limit of the fallback.
func (r *reference) share(l *limit) *limit {
	share := func(n int64) int64 {
		if n == 0 {
			return 0
		}
		return max(int64(float64(n)*fallbackRatio), 1)
	}
	sharedLimit := *l
	sharedLimit.requests, sharedLimit.burst, sharedLimit.lease = share(l.requests), share(l.burst), false
	return &sharedLimit
}

// assemble returns the statuses that follow from the outcomes, and which descriptors are over.
func assemble(rules []*rule, hits []hit, outcomes []outcome) (statuses []status, over []bool) {
	statuses, over = make([]status, len(rules)), make([]bool, len(rules))
	for i, found := range rules {
		if found != nil && len(found.limits) == 1 && found.limits[0].unlimited {
			statuses[i].remaining = math.MaxUint32
		}
		bestIndex := -1
		for j := range hits {
			if hits[j].descriptor != i {
				continue
			}
			if bestIndex < 0 || isMoreRestrictive(&hits[j], &outcomes[j], &hits[bestIndex], &outcomes[bestIndex]) {
				bestIndex = j
			}
		}
		if bestIndex < 0 {
			continue
		}
		v, l := outcomes[bestIndex].verdict, hits[bestIndex].limit
		over[i] = !v.allowed && !hits[bestIndex].shadow
		statuses[i] = status{over: over[i], hasLimit: true, remaining: max(v.remaining, 0), wait: roundWait(l, v.wait(l))}
		for j := range hits {
			if over[i] && hits[j].descriptor == i && !outcomes[j].allowed && outcomes[j].retry != neverPasses {
				statuses[i].wait = max(statuses[i].wait, roundWait(hits[j].limit, outcomes[j].retry))
			}
		}
	}
	return statuses, over
}

// isMoreRestrictive reports whether the status describes hit a and not hit b: a denied hit that never
// passes, the denied hit with the longest wait, or else the hit with the least remaining.
func isMoreRestrictive(a *hit, aOutcome *outcome, b *hit, bOutcome *outcome) bool {
	switch {
	case aOutcome.allowed != bOutcome.allowed:
		return !aOutcome.allowed
	case aOutcome.allowed:
		return aOutcome.remaining < bOutcome.remaining
	}
	if (aOutcome.retry == neverPasses) != (bOutcome.retry == neverPasses) {
		return aOutcome.retry == neverPasses
	}
	return aOutcome.wait(a.limit) > bOutcome.wait(b.limit)
}

// roundWait rounds waits of a second or more up to whole seconds. The waits of fixed_window are always
// whole seconds, if its window is.
func roundWait(l *limit, wait int64) int64 {
	if wait < second && (l.algorithm != "fixed_window" || l.period%second != 0) {
		return wait
	}
	return ceilDiv(wait, second) * second
}

// String returns the request in short.
func (q *request) String() string {
	var parts []string
	for _, d := range q.descriptors {
		var text []string
		for _, e := range d.entries {
			text = append(text, e.key+"="+e.value)
		}
		part := fmt.Sprintf("%s ×%d", strings.Join(text, ","), d.hits)
		if d.ownLimit != nil {
			part += " with limit " + d.ownLimit.yaml()
		}
		parts = append(parts, part)
	}
	text := strings.Join(parts, "; ")
	if q.acquire {
		text += " (acquire)"
	}
	if q.holdID != "" {
		text += " (hold " + q.holdID + ")"
	}
	return text
}
