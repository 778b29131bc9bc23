package limit

// MaxLogEntries is the maximum number of entries of a log. A log of exactLogEntries or more combines the hits of
// one tick into one entry. A window has logTicks ticks and can touch logTicks + 1.
const (
	MaxLogEntries   = exactLogEntries + logTicks + 1
	exactLogEntries = 2048
	logTicks        = 2047
)

// Log is a list of charged hits, oldest first. With Concurrency, it has holds instead.
type Log struct {
	entries []hitEntry // entries[:head] are expired
	head    int
	holds   *holdSet
}

// hitEntry has n hits. time is the time of the newest of these hits.
type hitEntry struct{ time, n int64 }

// emptyLog is the log of a key that has spent nothing. It must not be changed.
var emptyLog Log

// slidingLog remembers each charged hit for the length of a window.
//
// Bound: at most Max hits in any span of a window's length. A log of more than exactLogEntries entries counts a
// hit for up to 1/logTicks of the window longer. So it may deny hits a little too early, and never admits more.
//
// State: log has the hits. The number a is the sum of the hits.
func slidingLog(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	log := s.log
	if log == nil {
		log = &emptyLog
	}
	t := log.advance(now, l.period)
	total := s.a
	for log.len() > 0 && log.oldest().time+l.period <= t {
		total -= log.oldest().n
		log.head++
	}

	var r Result
	switch {
	case n < 0:
		r.Allowed = true
		total -= log.refund(-n)
	default:
		r.Allowed = total+max(n, 1) <= l.max
		if n > 0 && l.max > 0 && (r.Allowed || chargeDenied) {
			if s.log == nil {
				log = &Log{}
			}
			total = log.charge(t, n, total, l.max, ceilDiv(l.period, logTicks))
		}
	}
	r.Remaining = l.max - total
	if n >= 0 && r.Remaining < max(n, 1) {
		r.RetryAfter = Never
		if maxSpent := l.max - max(n, 1); maxSpent >= 0 {
			r.RetryAfter = log.retryAt(total, maxSpent) + l.period - now
		}
	}
	if log.len() == 0 {
		*s = State{}
		return r
	}
	r.ResetAfter = log.newest().time + l.period - now
	s.log, s.a = log, total
	return r
}

func (g *Log) len() int          { return len(g.entries) - g.head }
func (g *Log) oldest() *hitEntry { return &g.entries[g.head] }
func (g *Log) newest() *hitEntry { return &g.entries[len(g.entries)-1] }

// advance returns now, or the time of the newest entry if that time is later. If the clock was set back by more
// than a period, advance first moves all hits into one entry at now.
func (g *Log) advance(now, period int64) int64 {
	if g.len() == 0 || g.newest().time <= now {
		return now
	}
	if g.newest().time-now > period {
		var total int64
		for _, e := range g.entries[g.head:] {
			total += e.n
		}
		g.entries = g.entries[:g.head+1]
		*g.newest() = hitEntry{now, total}
	}
	return g.newest().time
}

// charge adds n hits and returns the new total. time is not before the newest entry. The hits join the newest
// entry if it has the same time, or the same tick in a long log. maxHits deny all other hits, so an entry holds
// no more, and charge drops entries if the newer entries hold maxHits.
func (g *Log) charge(time, n, total, maxHits, tick int64) int64 {
	if g.len() > 0 && (g.newest().time == time || g.len() >= exactLogEntries && g.newest().time/tick == time/tick) {
		n += g.newest().n
		total -= g.newest().n
		g.entries = g.entries[:len(g.entries)-1]
	}
	n = min(n, maxHits)
	for g.len() > 0 && total+n-g.oldest().n >= maxHits {
		total -= g.oldest().n
		g.head++
	}
	switch liveEntries := g.len(); {
	case cap(g.entries) > 64 && liveEntries < cap(g.entries)/4: // give memory back after a rush
		g.entries, g.head = append(make([]hitEntry, 0, 2*liveEntries+1), g.entries[g.head:]...), 0
	case len(g.entries) == cap(g.entries) && g.head >= liveEntries:
		g.entries, g.head = g.entries[:copy(g.entries, g.entries[g.head:])], 0
	}
	g.entries = append(g.entries, hitEntry{time, n})
	return total + n
}

// refund takes up to n hits off the newest entries and returns their number.
func (g *Log) refund(n int64) int64 {
	remaining := n
	for remaining > 0 && g.len() > 0 {
		e := g.newest()
		if e.n > remaining {
			e.n -= remaining
			return n
		}
		remaining -= e.n
		g.entries = g.entries[:len(g.entries)-1]
	}
	return n - remaining
}

// retryAt returns the time of the first entry after whose expiry at most maxSpent of total hits remain.
func (g *Log) retryAt(total, maxSpent int64) int64 {
	i := g.head
	for ; total > maxSpent; i++ {
		total -= g.entries[i].n
	}
	return g.entries[i-1].time
}
