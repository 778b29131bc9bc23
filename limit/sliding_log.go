package limit

// MaxLogEntries is the maximum number of entries of a log. A log with maxExactLogEntries or more combines the hits of one
// tick into one entry. A window is as long as logTicks ticks, and can overlap logTicks + 1 ticks.
const (
	MaxLogEntries      = maxExactLogEntries + logTicks + 1
	maxExactLogEntries = 2048
	logTicks           = 2047
)

// Log is a list of charged hits, oldest first. The Log of Concurrency has holds instead.
type Log struct {
	entries []hitEntry // entries[:head] have expired, and entries[head:] are live
	head    int
	holds   *holdSet
}

// hitEntry is an entry of a log: n hits, and the time of the newest of these hits.
type hitEntry struct{ time, n int64 }

// emptyLog is the log of a key that has spent nothing. No code may change emptyLog.
var emptyLog Log

// slidingLog remembers each charged hit for the length of a window.
//
// Bound: at most Max hits in any span of a window's length. A log of more than maxExactLogEntries entries counts a
// hit for up to 1/logTicks of the window longer. So it may deny hits a little too early, and never admits more.
//
// State: log has the hits. The number a is the sum of the hits.
func slidingLog(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	log := s.log
	if log == nil {
		log = &emptyLog
	}
	time := log.advance(now, l.period)
	total := s.a
	for log.len() > 0 && log.oldest().time+l.period <= time {
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
			total = log.charge(time, n, total, l.max, ceilDiv(l.period, logTicks))
		}
	}
	r.Remaining = l.max - total
	if n >= 0 && r.Remaining < max(n, 1) {
		r.RetryAfter = Never
		if maxSpent := l.max - max(n, 1); maxSpent >= 0 { // the hits pass if at most maxSpent hits are spent
			r.RetryAfter = log.lastBlockingTime(total, maxSpent) + l.period - now
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

func (log *Log) len() int          { return len(log.entries) - log.head }
func (log *Log) oldest() *hitEntry { return &log.entries[log.head] }
func (log *Log) newest() *hitEntry { return &log.entries[len(log.entries)-1] }

// advance returns now or the time of the newest entry, whichever is later. If the clock was set back by more than a
// period, advance first moves all hits into one entry at now.
func (log *Log) advance(now, period int64) int64 {
	if log.len() == 0 || log.newest().time <= now {
		return now
	}
	if log.newest().time-now > period {
		var total int64
		for _, e := range log.entries[log.head:] {
			total += e.n
		}
		log.entries = log.entries[:log.head+1]
		*log.newest() = hitEntry{now, total}
	}
	return log.newest().time
}

// charge adds n hits and returns the new total. time is not before the newest entry. If the newest entry has the same
// time, or in a long log the same tick, the hits become a part of this entry. More than maxHits hits change no decision.
// So an entry gets at most maxHits, and charge drops old entries once the newer entries have maxHits.
func (log *Log) charge(time, n, total, maxHits, tick int64) int64 {
	if log.len() > 0 && (log.newest().time == time || log.len() >= maxExactLogEntries && log.newest().time/tick == time/tick) {
		n += log.newest().n
		total -= log.newest().n
		log.entries = log.entries[:len(log.entries)-1]
	}
	n = min(n, maxHits)
	for log.len() > 0 && total+n-log.oldest().n >= maxHits {
		total -= log.oldest().n
		log.head++
	}
	switch liveEntries := log.len(); {
	case cap(log.entries) > maxSpareEntries && liveEntries < cap(log.entries)/4:
		log.entries, log.head = append(make([]hitEntry, 0, 2*liveEntries+1), log.entries[log.head:]...), 0
	case len(log.entries) == cap(log.entries) && log.head >= liveEntries:
		log.entries, log.head = log.entries[:copy(log.entries, log.entries[log.head:])], 0
	}
	log.entries = append(log.entries, hitEntry{time, n})
	return total + n
}

// maxSpareEntries is the largest capacity of a log that charge never reduces. It reduces a larger log with unused memory.
const maxSpareEntries = 64

// refund removes up to n hits from the newest entries and returns the number of removed hits.
func (log *Log) refund(n int64) int64 {
	hitsLeft := n
	for hitsLeft > 0 && log.len() > 0 {
		e := log.newest()
		if e.n > hitsLeft {
			e.n -= hitsLeft
			return n
		}
		hitsLeft -= e.n
		log.entries = log.entries[:len(log.entries)-1]
	}
	return n - hitsLeft
}

// lastBlockingTime returns the time of the last entry that must expire until at most maxSpent of the total hits are left.
func (log *Log) lastBlockingTime(total, maxSpent int64) int64 {
	i := log.head
	for ; total > maxSpent; i++ {
		total -= log.entries[i].n
	}
	return log.entries[i-1].time
}
