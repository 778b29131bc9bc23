package limit

// hitLog holds charged hits by time, oldest first; hits of one microsecond share
// an entry.
type hitLog struct {
	entries []hitEntry // entries[:head] are gone
	head    int
}

type hitEntry struct{ at, n int64 }

// emptyLog stands for the log of a key that has spent nothing; it is only read.
var emptyLog hitLog

// slidingLog remembers each charged hit for a window's length.
//
// Bound: exactly at most Max hits in any span of a window's length, [t, t+period).
// It keeps at most Max entries of 16 bytes: with denied hits charged, entries
// that newer ones of together Max already outweigh are dropped, which changes no
// decision.
//
// State: log holds the hits, a their sum.
func slidingLog(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	log := s.log
	if log == nil {
		log = &emptyLog
	}
	t := log.settle(now, l.period)
	total := s.a
	for log.len() > 0 && log.oldest().at+l.period <= t {
		total -= log.oldest().n
		log.head++
	}

	var r Result
	switch {
	case n < 0:
		r.Allowed = true
		total -= log.giveBack(-n)
	case n == 0:
		r.Allowed = total+1 <= l.max
	default:
		r.Allowed = total+n <= l.max
		if l.max > 0 && (r.Allowed || chargeDenied) {
			if s.log == nil {
				log = &hitLog{}
			}
			total = log.charge(t, n, total, l.max)
		}
	}
	r.Remaining = l.max - total
	if !r.Allowed {
		r.RetryAfter = Never
		if spare := l.max - max(n, 1); spare >= 0 {
			r.RetryAfter = log.fit(total, spare) + l.period - now
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

// settle returns the log's time for now: never before its newest entry. If now
// is more than a period behind that, the clock was set back, and all entries
// move back to now.
func (g *hitLog) settle(now, period int64) int64 {
	if g.len() == 0 || g.newest().at <= now {
		return now
	}
	if g.newest().at-now > period {
		for i := g.head; i < len(g.entries); i++ {
			g.entries[i].at = min(g.entries[i].at, now)
		}
	}
	return g.newest().at
}

// charge adds n hits at time at, the newest, and returns the new total. An entry
// of most denies all others as long as it lives, so none is heavier, and entries
// older than a total of most are dropped.
func (g *hitLog) charge(at, n, total, most int64) int64 {
	if g.len() > 0 && g.newest().at == at {
		n += g.newest().n
		total -= g.newest().n
		g.entries = g.entries[:len(g.entries)-1]
	}
	n = min(n, most)
	for g.len() > 0 && total+n-g.oldest().n >= most {
		total -= g.oldest().n
		g.head++
	}
	switch live := g.len(); {
	case cap(g.entries) > 64 && live < cap(g.entries)/4: // a rush is over
		g.entries, g.head = append(make([]hitEntry, 0, 2*live+1), g.entries[g.head:]...), 0
	case len(g.entries) == cap(g.entries) && g.head >= live:
		g.entries, g.head = g.entries[:copy(g.entries, g.entries[g.head:])], 0
	}
	g.entries = append(g.entries, hitEntry{at, n})
	return total + n
}

// giveBack takes up to n hits off the newest entries and returns how many.
func (g *hitLog) giveBack(n int64) int64 {
	left := n
	for left > 0 && g.len() > 0 {
		e := g.newest()
		if e.n > left {
			e.n -= left
			return n
		}
		left -= e.n
		g.entries = g.entries[:len(g.entries)-1]
	}
	return n - left
}

// fit returns the time of the oldest entry that must go, with all before it,
// for at most spare of total to stay.
func (g *hitLog) fit(total, spare int64) int64 {
	i := g.head
	for ; total > spare; i++ {
		total -= g.entries[i].n
	}
	return g.entries[i-1].at
}
