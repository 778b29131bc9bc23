package limit

// A log of up to exactLogEntries entries keeps the time of each charged hit. A longer log
// keeps one entry for the hits of a tick, and a window has logTicks ticks. A window of hits
// can touch logTicks + 1 ticks. So MaxLogEntries is the sum of the exact entries and these
// ticks.
const (
	MaxLogEntries   = exactLogEntries + logTicks + 1
	exactLogEntries = 2048
	logTicks        = 2047
)

// hitLog is a list of charged hits, oldest first. Hits of one microsecond share an entry.
type hitLog struct {
	entries []hitEntry // entries[:head] are expired
	head    int
}

// hitEntry is n hits. The newest hit came at time at.
type hitEntry struct{ at, n int64 }

// emptyLog is the log of a key that has spent nothing. It must not be changed.
var emptyLog hitLog

// slidingLog remembers each charged hit for the length of a window.
//
// Bound: at most Max hits in any span of a window's length, [t, t+period). A log of more
// than exactLogEntries entries counts a hit for up to 1/logTicks of the window longer, so
// it may deny hits a little earlier than necessary. It never admits more.
//
// If denied hits are charged, the log drops entries when newer entries of together Max
// outweigh them. That changes no decision.
//
// State: log holds the hits, a their sum.
func slidingLog(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	log := s.log
	if log == nil {
		log = &emptyLog
	}
	t := log.advance(now, l.period)
	total := s.a
	for log.len() > 0 && log.oldest().at+l.period <= t {
		total -= log.oldest().n
		log.head++
	}

	var r Result
	switch {
	case n < 0:
		r.Allowed = true
		total -= log.refund(-n)
	case n == 0:
		r.Allowed = total+1 <= l.max
	default:
		r.Allowed = total+n <= l.max
		if l.max > 0 && (r.Allowed || chargeDenied) {
			if s.log == nil {
				log = &hitLog{}
			}
			total = log.charge(t, n, total, l.max, ceilDiv(l.period, logTicks))
		}
	}
	r.Remaining = l.max - total
	if !r.Allowed {
		r.RetryAfter = Never
		if maxSpent := l.max - max(n, 1); maxSpent >= 0 {
			r.RetryAfter = log.retryAt(total, maxSpent) + l.period - now
		}
	}
	if log.len() == 0 {
		*s = State{}
		return r
	}
	r.ResetAfter = log.newest().at + l.period - now
	s.log, s.a = log, total
	return r
}

func (g *hitLog) len() int          { return len(g.entries) - g.head }
func (g *hitLog) oldest() *hitEntry { return &g.entries[g.head] }
func (g *hitLog) newest() *hitEntry { return &g.entries[len(g.entries)-1] }

// advance returns the time of the log at now. The time is never before the newest entry.
// If the newest entry is more than a period after now, the clock was set back. All hits
// then move to one entry at now.
func (g *hitLog) advance(now, period int64) int64 {
	if g.len() == 0 || g.newest().at <= now {
		return now
	}
	if g.newest().at-now > period {
		var total int64
		for _, e := range g.entries[g.head:] {
			total += e.n
		}
		g.entries = g.entries[:g.head+1]
		*g.newest() = hitEntry{now, total}
	}
	return g.newest().at
}

// charge adds n hits at time at, which is not before the newest entry, and returns the new
// total. The hits join the newest entry if it has the same time, or the same tick in a long
// log. An entry of maxHits denies all others, so no entry is heavier. Entries older than a
// total of maxHits are dropped.
func (g *hitLog) charge(at, n, total, maxHits, tick int64) int64 {
	if g.len() > 0 && (g.newest().at == at || g.len() >= exactLogEntries && g.newest().at/tick == at/tick) {
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
	g.entries = append(g.entries, hitEntry{at, n})
	return total + n
}

// refund takes up to n hits off the newest entries and returns how many.
func (g *hitLog) refund(n int64) int64 {
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

// retryAt returns the time of the entry with which enough hits expire for at most maxSpent
// of total to stay.
func (g *hitLog) retryAt(total, maxSpent int64) int64 {
	i := g.head
	for ; total > maxSpent; i++ {
		total -= g.entries[i].n
	}
	return g.entries[i-1].at
}
