// Package quota divides one limit between many holders, by demand. A holder is a bucket of one Envoy. It enforces the
// rate that it was granted, without a call per request, and reports its requests every few seconds.
//
// Bound: in each interval of length t, all holders together admit at most Rate × t + Burst. The proof has two parts.
//
//   - MaxRate of a holder is the largest rate that the holder may still enforce. If Rate decreases, MaxRate keeps the old
//     value until a report proves that the holder has received the new rate, or until the last grant has expired. Apply
//     raises a rate only if the sum of all MaxRate stays within the limit.
//   - Credit pays for each token that no rate creates: for the first tokens of a bucket, and for each growth of a bucket.
//     The credit grows by the part of the limit that no MaxRate uses. credit + the sum of all MaxBurst ≤ Burst.
//
// So the tokens in all buckets and the credit are at most Burst, and they grow by at most Rate.
//
// The proof needs these assumptions:
//
//   - A message passes a stream in order, or the stream ends. Delay is at least the time from Apply to the receipt of the
//     grants, plus the time from a report to the Apply that counts the report. It includes the drift of the clocks.
//   - A grant expires TTL after its receipt. Without a grant, a holder admits nothing.
//   - The store keeps its writes. If it has lost all of them, IsFrozen bounds the rates until the old grants have expired.
//     If the store goes back to an older state, OwnHolders restores only the holders of this replica.
//   - The limit does not become lower. After a decrease, the old rates last until the holders have received lower rates.
package quota

import (
	"cmp"
	"math"
	"slices"

	"github.com/seed-81f232ab/rls/limit"
)

// Limit is what the holders share. Times are microseconds.
type Limit struct {
	// Rate is the number of tokens per Interval, and Burst the number of tokens in a full bucket. Both are below 2^32.
	Rate, Interval, Burst int64
	// MinShare is the share of a holder without demand, as a part of an equal share.
	MinShare float64
	// Headroom is the part of Rate that is free for new holders. The other holders share the rest.
	Headroom float64
	// TTL is the time that a grant lasts after its receipt. It should be at least two intervals of reports plus Delay.
	TTL int64
	// Delay is the longest time of a grant on its way to a holder, plus the longest time of a report on its way back.
	Delay int64
}

// MaxHolders is the largest number of holders of a limit. Apply grants further holders the rate 0.
const MaxHolders = 10_000

// HolderID names a holder. It is random, and new for each stream.
type HolderID uint64

// Report has the requests of a holder since its last report, with the denied requests.
// The replica must not lose a report of an open stream.
type Report struct {
	Holder           HolderID
	Requests, Denied int64 // Requests includes Denied
	// IsReturning says that the first report in a stream covers more than a second: the Envoy had another stream before,
	// and may still enforce a grant. Apply gives the holder no grant until half of the holder's share is free.
	IsReturning bool
}

// Grant is the rate and the burst that the replica must send to a holder. If Rate is 0, the holder denies all requests.
type Grant struct {
	Holder      HolderID
	Rate, Burst int64
}

// Update is what one replica knows when it calls Apply.
type Update struct {
	Reports []Report
	// OwnHolders has the holders of the open streams of this replica, with the grants that the replica has sent: the result
	// of Holders after the last Apply whose result was stored. Only this replica changes these holders.
	OwnHolders []Holder
	// IsFrozen says that the store may have lost data less than TTL + Delay ago.
	IsFrozen bool
}

// Holder is what the state has about a holder. Times are microseconds of the clock of the store. A time of 0 means never.
type Holder struct {
	ID          HolderID
	Rate, Burst int64 // the last grant
	// MaxRate and MaxBurst are the largest values that the holder may still enforce.
	MaxRate, MaxBurst int64
	// Demands has the demands of the last two reports, in tokens per Interval. The newest is first.
	Demands [2]int64
	// JoinedAt is the time of the first report. ReportedAt is the time of the last report.
	JoinedAt, ReportedAt int64
	// SentAt is the time of the last grant. It is 0 if the holder waits for its first grant.
	SentAt int64
	// ReducedAt is the time of the last grant that was lower than the grant before.
	ReducedAt int64
	// Interval is the time in which Rate, MaxRate and Demands count tokens.
	Interval int64
}

// Demand returns the larger of the last two demands.
func (h *Holder) Demand() int64 { return max(h.Demands[0], h.Demands[1]) }

// isReduced reports whether the holder may still enforce more than its last grant.
func (h *Holder) isReduced() bool { return h.MaxRate > h.Rate || h.MaxBurst > h.Burst }

const (
	maxTokens     = 1<<32 - 1 // the largest rate or burst: Envoy's fields have 32 bits
	nanosPerToken = 1e9       // credit and level are in billionths of a token
	second        = 1_000_000

	// minReportSpan is the shortest time that a report counts for. So one request right after a report is no large demand.
	minReportSpan = second
	// firstReportSpan is the time that the first report of a returning holder counts for: Envoy's interval of reports.
	firstReportSpan = 5 * second

	// smallBurst is a burst that denies few requests that the rate would admit.
	smallBurst = 10

	// A grant changes only if the change is larger than the grant divided by one of these numbers.
	pushDivisor        = 50  // if the holder gets an extra message
	answerDivisor      = 200 // if the holder gets an answer anyway
	unconfirmedDivisor = 4   // if the last decrease is not confirmed yet, because each decrease delays the confirmation
)

// member is a holder during one Apply.
type member struct {
	*Holder
	isOwn       bool // the holder has a stream to this replica
	hasReported bool
	isWaiting   bool // a returning holder has no grant yet
	isChanged   bool
	target      int64 // the rate that the holder should get
}

// transition is the change of a State by one Apply.
type transition struct {
	*State
	limit    Limit
	now      int64
	isFrozen bool
	members  []*member
	refusals []Grant // the grants of the holders beyond MaxHolders
}

// Apply counts reports, divides the limit again, and returns the grants that the replica must send after it has stored s.
// now is the time of the store. If the store refuses s, because it has a newer state, Apply starts again from that state.
func (s *State) Apply(l *Limit, now int64, u Update) []Grant {
	t := &transition{State: s, limit: l.withBounds(), now: now}
	t.prepare(u.IsFrozen)
	t.restoreOwnHolders(u.OwnHolders)
	t.isFrozen = u.IsFrozen || now < s.frozenUntil
	t.addNewTokens()
	t.dropExpired()
	t.addHolders(u)
	t.countReports(u.Reports)
	t.raiseCredit()
	t.setTargets(func(m *member) bool { return !m.isWaiting })
	t.lowerRates()
	t.setTargets(func(*member) bool { return true })
	t.payRenewals()
	t.admitNewcomers()
	t.raiseRates()
	t.raiseBursts()
	s.appliedAt = now
	return t.grants()
}

func (l *Limit) withBounds() Limit {
	b := *l
	b.Rate = min(max(l.Rate, 0), maxTokens)
	b.Burst = min(max(l.Burst, 0), maxTokens)
	b.Interval = max(l.Interval, 1)
	return b
}

// reserve returns the part of Rate or Burst that only new holders get, after the store has lost its data.
func (l *Limit) reserve(tokens int64) int64 { return part(tokens, l.Headroom/2) }

func (l *Limit) divisibleRate() int64 { return l.Rate - part(l.Rate, l.Headroom) }

func (l *Limit) burstOf(rate int64) int64 {
	if rate == 0 || l.Burst == 0 {
		return 0
	}
	return max(mulDiv(min(rate, l.Rate), l.Burst, l.Rate), 1)
}

// prepare converts the state to the interval of the limit and to a clock that went back, or fills a new state.
func (t *transition) prepare(isFrozen bool) {
	s, l := t.State, &t.limit
	if s.appliedAt == 0 {
		s.frozenRate = l.reserve(l.Rate)
		s.credit = (l.Burst - l.reserve(l.Burst)) * nanosPerToken
		s.level = l.Burst * nanosPerToken
		if isFrozen {
			s.freeze(l, t.now)
		}
	}
	for i := range s.holders {
		t.convert(&s.holders[i])
	}
	s.interval = l.Interval
	s.frozenUntil = min(s.frozenUntil, t.now+l.TTL+l.Delay)
}

// freeze stops all raises until the grants that s may not know have expired. New holders share the reserve.
func (s *State) freeze(l *Limit, now int64) {
	s.frozenUntil = now + l.TTL + l.Delay
	s.credit = min(s.credit, max(l.reserve(l.Burst), 1)*nanosPerToken)
	s.level = 0
}

// convert converts h to the interval of the limit, and rounds rates up. A time after now becomes now, because on each clock,
// all messages were sent before now.
func (t *transition) convert(h *Holder) {
	if h.Interval != t.limit.Interval {
		for _, rate := range []*int64{&h.Rate, &h.MaxRate, &h.Demands[0], &h.Demands[1]} {
			*rate = min(mulDivUp(*rate, t.limit.Interval, max(h.Interval, 1)), maxTokens)
		}
		h.Interval = t.limit.Interval
	}
	for _, time := range []*int64{&h.JoinedAt, &h.ReportedAt, &h.SentAt, &h.ReducedAt} {
		*time = min(*time, t.now)
	}
}

// restoreOwnHolders puts the holders of this replica into the state as the replica remembers them. The state may lack the
// last grants of the replica, because the store lost a write, or stored a write whose answer was lost.
func (t *transition) restoreOwnHolders(ownHolders []Holder) {
	isGrantLost := false
	for _, ownHolder := range ownHolders {
		t.convert(&ownHolder)
		i, isFound := t.find(ownHolder.ID)
		if !isFound {
			isGrantLost = isGrantLost || ownHolder.MaxRate > 0 && !t.hasExpired(&ownHolder)
			t.holders = slices.Insert(t.holders, i, ownHolder)
			continue
		}
		storedHolder := &t.holders[i]
		if storedHolder.Rate == ownHolder.Rate && storedHolder.Burst == ownHolder.Burst && storedHolder.ReducedAt == ownHolder.ReducedAt {
			ownHolder.MaxRate, ownHolder.MaxBurst = min(ownHolder.MaxRate, storedHolder.MaxRate), min(ownHolder.MaxBurst, storedHolder.MaxBurst)
		}
		*storedHolder = ownHolder
	}
	if isGrantLost {
		t.freeze(&t.limit, t.now)
	}
}

func (s *State) find(id HolderID) (int, bool) {
	return slices.BinarySearchFunc(s.holders, id, func(h Holder, id HolderID) int { return cmp.Compare(h.ID, id) })
}

func (t *transition) hasExpired(h *Holder) bool { return h.expiry(&t.limit) <= t.now }

func (s *State) sums() (maxRateSum, maxBurstSum int64) {
	for i := range s.holders {
		maxRateSum += s.holders[i].MaxRate
		maxBurstSum += s.holders[i].MaxBurst
	}
	return maxRateSum, maxBurstSum
}

func (t *transition) addNewTokens() {
	l := &t.limit
	if elapsed := t.now - t.appliedAt; t.appliedAt > 0 && elapsed > 0 && !t.isFrozen {
		maxRateSum, _ := t.sums()
		t.credit += min(mulDiv(max(l.Rate-maxRateSum, 0)*nanosPerToken, elapsed, l.Interval), l.Burst*nanosPerToken)
		t.level = min(t.level, l.Burst*nanosPerToken) + min(mulDiv(l.Rate*nanosPerToken, elapsed, l.Interval), l.Burst*nanosPerToken)
	}
	t.level = min(t.level, l.Burst*nanosPerToken)
	if !t.isFrozen {
		t.frozenRate = l.reserve(l.Rate)
	}
}

func (t *transition) dropExpired() {
	t.holders = slices.DeleteFunc(t.holders, func(h Holder) bool {
		hasExpired := t.hasExpired(&h)
		if hasExpired {
			t.lowerLevel(t.maxUnreportedTokens(&h))
		}
		return hasExpired
	})
}

// maxUnreportedTokens returns the most tokens that h can have spent since its last report, plus the tokens of a full bucket.
func (t *transition) maxUnreportedTokens(h *Holder) int64 {
	return h.MaxBurst + mulDivUp(h.MaxRate, t.now-h.ReportedAt+t.limit.Delay, t.limit.Interval)
}

func (s *State) lowerLevel(tokens int64) {
	s.level = max(s.level-min(tokens, maxTokens)*nanosPerToken, 0)
}

// raiseCredit raises the credit to the tokens that are provably in no bucket: the level minus the maxUnreportedTokens of all
// holders. So if a holder gave its burst back, or has expired, other holders can get the burst.
func (t *transition) raiseCredit() {
	if t.isFrozen {
		return
	}
	l, freeTokens := &t.limit, t.level
	for i := range t.holders {
		freeTokens = max(freeTokens-min(t.maxUnreportedTokens(&t.holders[i]), maxTokens)*nanosPerToken, 0)
	}
	_, maxBurstSum := t.sums()
	t.credit = max(min(max(t.credit, freeTokens), (l.Burst-l.reserve(l.Burst)-maxBurstSum)*nanosPerToken), 0)
}

func (t *transition) addHolders(u Update) {
	isReturningByID := make(map[HolderID]bool, len(u.OwnHolders)+len(u.Reports)) // has all holders of this replica
	for _, h := range u.OwnHolders {
		isReturningByID[h.ID] = false
	}
	for _, r := range u.Reports {
		isReturningByID[r.Holder] = r.IsReturning
		if i, isFound := t.find(r.Holder); !isFound && len(t.holders) >= MaxHolders {
			t.refusals = append(t.refusals, Grant{Holder: r.Holder})
		} else if !isFound {
			h := Holder{ID: r.Holder, JoinedAt: t.now, Interval: t.limit.Interval}
			t.holders = slices.Insert(t.holders, i, h)
		}
	}
	members := make([]member, len(t.holders))
	t.members = make([]*member, len(t.holders))
	for i := range t.holders {
		h := &t.holders[i]
		isReturning, isOwn := isReturningByID[h.ID]
		isWaiting := h.SentAt == 0 && (isReturning || h.ReportedAt > 0) && t.now < h.JoinedAt+t.limit.TTL+t.limit.Delay
		members[i] = member{Holder: h, isOwn: isOwn, isWaiting: isWaiting}
		t.members[i] = &members[i]
	}
}

func (t *transition) membersThat(isChosen func(*member) bool) []*member {
	return slices.DeleteFunc(slices.Clone(t.members), func(m *member) bool { return !isChosen(m) })
}

// countReports computes the demands, and confirms decreases.
func (t *transition) countReports(reports []Report) {
	requests := make(map[HolderID]int64, len(reports))
	for _, r := range reports {
		n := min(max(r.Requests, 0), maxTokens)
		requests[r.Holder] = min(requests[r.Holder]+n, maxTokens)
		t.lowerLevel(n - min(max(r.Denied, 0), n))
	}
	l := &t.limit
	equalShare := l.Rate / int64(max(len(t.members), 1))
	for _, m := range t.members {
		n, hasReported := requests[m.ID]
		if !hasReported {
			continue
		}
		m.hasReported = true
		span, minDemand := max(t.now-m.ReportedAt, minReportSpan), int64(0)
		if m.ReportedAt == 0 {
			span, minDemand = firstReportSpan, part(l.Rate, l.Headroom)
			if !m.isWaiting {
				n = 0 // the report covers no span
			}
		}
		demand := min(mulDivUp(n*11, l.Interval, span*10), max(min(2*m.Rate, l.Rate), equalShare))
		m.Demands = [2]int64{max(demand, minDemand), m.Demands[0]}
		m.ReportedAt = t.now
		if t.now >= m.ReducedAt+l.Delay {
			m.MaxRate, m.MaxBurst = m.Rate, m.Burst
		}
	}
}

// setTargets divides the limit between the members that take part. Members with a small demand get their demand, and the
// others get equal parts of the rest. If all get their demand, the rest of the limit is divided equally.
func (t *transition) setTargets(takesPart func(*member) bool) {
	l := &t.limit
	sorted := t.membersThat(takesPart)
	n, rest := int64(len(sorted)), l.divisibleRate()
	minDemand := min(max(part(l.Rate, l.MinShare)/max(n, 1), 1), rest/max(n, 1))
	demandOf := func(m *member) int64 { return max(m.Demand(), minDemand) }
	slices.SortFunc(sorted, func(a, b *member) int {
		return cmp.Or(cmp.Compare(demandOf(a), demandOf(b)), cmp.Compare(a.ID, b.ID))
	})
	for i, m := range sorted {
		m.target = min(demandOf(m), rest/(n-int64(i)))
		rest -= m.target
	}
	for i, m := range sorted {
		extra := rest / (n - int64(i))
		m.target += extra
		rest -= extra
	}
}

func (m *member) isWorthMessage(change, oldValue int64) bool {
	if m.hasReported {
		return change > oldValue/answerDivisor
	}
	return change > oldValue/pushDivisor+1
}

func (t *transition) lowerRates() {
	for _, m := range t.members {
		if !m.isOwn {
			continue
		}
		rate := min(m.Rate, m.target)
		burst := min(m.Burst, t.limit.burstOf(rate))
		isLarge := m.Rate-rate > m.Rate/unconfirmedDivisor || m.Burst-burst > m.Burst/unconfirmedDivisor
		switch {
		case m.isReduced() && !isLarge:
		case m.isWorthMessage(m.Rate-rate, m.Rate):
			t.lower(m, rate, burst)
		case m.isWorthMessage(m.Burst-burst, m.Burst):
			t.lower(m, m.Rate, burst)
		}
	}
}

func (t *transition) lower(m *member, rate, burst int64) {
	if burst == 0 {
		rate = 0
	}
	m.Rate, m.Burst, m.ReducedAt, m.isChanged = rate, burst, t.now, true
}

// payRenewals pays for full buckets of holders whose last grant may expire before the next grant arrives. After such a pause,
// Envoy starts with a full bucket.
func (t *transition) payRenewals() {
	for _, m := range t.members {
		mayHaveExpired := m.SentAt > 0 && t.now+t.limit.Delay > m.SentAt+t.limit.TTL
		if !m.isOwn || !mayHaveExpired || m.Burst == 0 || !m.hasReported && !m.isChanged {
			continue
		}
		if paidBurst := min(t.credit/nanosPerToken, m.Burst); paidBurst < m.Burst {
			t.lower(m, m.Rate, paidBurst)
		}
		t.credit -= m.Burst * nanosPerToken
		t.lowerLevel(m.Burst)
	}
}

func (t *transition) admitNewcomers() {
	l := &t.limit
	newcomers := t.membersThat(func(m *member) bool { return m.isOwn && m.Rate == 0 && m.MaxRate == 0 && m.target > 0 })
	maxRateSum, _ := t.sums()
	freeRate := max(l.divisibleRate()-maxRateSum, 0)
	reservedRate := max(l.Rate-l.reserve(l.Rate)-maxRateSum-freeRate, 0)
	poolRate := freeRate + (reservedRate+3)/4 // the rest of reservedRate is for later newcomers
	if t.isFrozen {
		poolRate = max(min((t.frozenRate+3)/4, l.Rate-maxRateSum), 0)
	}
	for i, m := range newcomers {
		newcomersLeft := int64(len(newcomers) - i)
		rate := min(m.target, (poolRate+newcomersLeft-1)/newcomersLeft)
		if m.isWaiting {
			rate = min(m.target, poolRate)
		}
		burst := min(l.burstOf(rate), (t.credit/nanosPerToken/4+newcomersLeft)/newcomersLeft, t.credit/nanosPerToken)
		if burst == 0 || m.isWaiting && rate < m.target/2 {
			continue
		}
		m.isWaiting = false
		m.Rate, m.MaxRate, m.Burst, m.MaxBurst, m.isChanged = rate, rate, burst, max(m.MaxBurst, burst), true
		t.credit -= burst * nanosPerToken
		poolRate -= rate
		if t.isFrozen {
			t.frozenRate -= rate
		}
	}
}

// raiseRates raises rates as far as the limit has room. If the room is too small, each holder gets a part.
func (t *transition) raiseRates() {
	if t.isFrozen {
		return
	}
	membersToRaise := t.membersThat(func(m *member) bool { return m.isOwn && m.Rate > 0 && m.isWorthMessage(m.target-m.Rate, m.Rate) })
	var missingRateSum int64
	for _, m := range membersToRaise {
		missingRateSum += max(m.target-m.MaxRate, 0)
	}
	maxRateSum, _ := t.sums()
	room := max(t.limit.divisibleRate()-maxRateSum, 0)
	for _, m := range membersToRaise {
		missingRate := max(m.target-m.MaxRate, 0)
		extra := missingRate
		if missingRateSum > room {
			extra = mulDiv(missingRate, room, missingRateSum)
		}
		missingRateSum -= missingRate
		if rate := min(m.target, m.MaxRate+extra); m.isWorthMessage(rate-m.Rate, m.Rate) {
			m.Rate, m.MaxRate, m.isChanged = rate, max(m.MaxRate, rate), true
			room -= extra
		}
	}
}

// raiseBursts lets bursts grow with the rates, as far as the credit pays. Small bursts grow first. The others leave most of
// the credit to newcomers.
func (t *transition) raiseBursts() {
	if t.isFrozen {
		return
	}
	membersToRaise := t.membersThat(func(m *member) bool {
		return m.isOwn && m.Rate > 0 && (m.hasReported || m.isChanged) && m.isWorthMessage(t.limit.burstOf(m.Rate)-m.Burst, m.Burst)
	})
	for i, m := range membersToRaise {
		t.raiseBurst(m, min(smallBurst-m.Burst, (t.credit/nanosPerToken-1)/int64(len(membersToRaise)-i)))
	}
	for i, m := range membersToRaise {
		t.raiseBurst(m, t.credit/nanosPerToken/4/int64(len(membersToRaise)-i))
	}
}

func (t *transition) raiseBurst(m *member, maxGrowth int64) {
	growth := min(t.limit.burstOf(m.Rate)-m.Burst, maxGrowth)
	if growth <= 0 {
		return
	}
	maxBurst := max(m.MaxBurst, m.Burst+growth)
	t.lowerLevel(growth - (maxBurst - m.MaxBurst))
	t.credit -= growth * nanosPerToken
	m.Burst, m.MaxBurst, m.isChanged = m.Burst+growth, maxBurst, true
}

func (t *transition) grants() []Grant {
	grants := t.refusals
	for _, m := range t.members {
		if m.isChanged || m.hasReported && !m.isWaiting {
			m.SentAt = t.now
			grants = append(grants, Grant{Holder: m.ID, Rate: m.Rate, Burst: m.Burst})
		}
	}
	return grants
}

// part returns n × share, rounded down.
func part(n int64, share float64) int64 { return int64(float64(n) * min(max(share, 0), 1)) }

// mulDiv returns a × b / c rounded down, at most 2^63 - 1. No number is negative.
func mulDiv(a, b, c int64) int64 {
	quotient, _ := limit.MulDiv(a, b, c)
	return quotient
}

// mulDivUp returns a × b / c rounded up.
func mulDivUp(a, b, c int64) int64 {
	quotient, remainder := limit.MulDiv(a, b, c)
	if remainder > 0 && quotient < math.MaxInt64 {
		quotient++
	}
	return quotient
}
