// Package limit has limits and algorithms, which decide whether hits pass. It is pure arithmetic without clock, I/O or
// wire format. The scripts in lua/ do the same arithmetic inside Redis.
//
// docs/glossary.md explains the terms. All times and spans are whole microseconds, and times count from the
// Unix epoch. Lua must compute the same numbers exactly, and its numbers are whole only up to 2^53.
package limit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// The bounds of limits.
const (
	MaxHits   = 1 << 34                    // the most hits in one Take and in a counter; a refund of MaxHits is a reset
	minPeriod = 10_000                     // the shortest window
	MaxPeriod = 10 * 365 * 86_400 * second // the longest window, and the longest time to fill a token bucket: ten years
	Never     = -1                         // the RetryAfter of hits that can never pass
	second    = 1_000_000
)

// Spec has the numbers of a limit as a limits file states them.
type Spec struct {
	Algorithm Algorithm

	Requests uint32 // the hits that a window admits, or the slots of a limit with Concurrency

	// The window is Multiplier × Unit. A Multiplier of 0 means 1.
	Unit       Unit
	Multiplier uint32

	// Timezone makes windows days, weeks, months or years of the calendar in this time zone, such as
	// Europe/Berlin. If Timezone is empty, windows are aligned to the epoch.
	Timezone string

	Burst uint32 // the capacity of a token bucket; 0 means Requests

	// ChargeDenied means that denied hits are charged too. The debt is at most Requests. If the algorithm has
	// ResetsAtWindowEnd, the debt has no bound, but it ends with the window.
	ChargeDenied bool

	Scope            Scope
	OnBackendFailure FailureMode

	// FallbackRatio is the share of the limit that each replica admits while the backend is unavailable:
	// above 0 and at most 1. 0 means the default of the service.
	FallbackRatio float64

	// Lease lets a replica take permits from the backend in batches. LeaseWaste is the largest share of the capacity
	// that all replicas together may hold as unused permits: at most MaxLeaseWaste. 0 means DefaultLeaseWaste.
	Lease      bool
	LeaseWaste float64

	// Hold is the time after which a hold expires, in microseconds. 0 means DefaultHold. Only Concurrency uses Hold.
	// Concurrency ignores Unit, Multiplier and ChargeDenied.
	Hold int64
}

// Limit is a checked Spec with numbers that New computes. It is safe for concurrent use, and must not be copied.
type Limit struct {
	Spec

	period          int64  // the length of the window, or Hold, in microseconds
	max             int64  // Requests
	capacity        int64  // the most hits that can be spent at once
	maxLeasePermits int64  // the permits that all replicas together may hold
	tag             string // such as fw60

	calendar *calendar // nil without a Timezone
	ratio    float64   // the ratio of the call of Scaled that returned the limit; otherwise 0

	fillTime span  // the time that an empty bucket of tokenBucket takes to fill
	ticks    int64 // the number of ticks in a window of slidingWindow
	tick     int64 // the length of a tick of slidingWindow, in microseconds

	lastScaledLimit    atomic.Pointer[Limit]       // the last result of Scaled
	lastRegionShare    atomic.Pointer[regionShare] // the last result of RegionShare, with its regions
	otherChargeVariant atomic.Pointer[Limit]       // the limit that differs only in ChargeDenied; see WithChargeDenied
}

// New checks s and returns its Limit. The error joins one error for each wrong field. Such an error starts with the
// name of the field in the limits file and states the allowed values.
func New(s Spec) (*Limit, error) {
	if int(s.Algorithm) >= len(algorithms) {
		return nil, fmt.Errorf("algorithm %d is not known", s.Algorithm)
	}
	var errs []error
	if s.Algorithm.HasHolds() {
		s.Unit, s.Multiplier, s.ChargeDenied = 0, 0, false
		s.Hold = cmp.Or(s.Hold, DefaultHold)
		if s.Hold < MinHold || s.Hold > MaxHold {
			errs = append(errs, fmt.Errorf("hold %s must be at least %s and at most %s", DurationText(s.Hold), DurationText(MinHold), DurationText(MaxHold)))
		}
	} else if s.Hold != 0 {
		errs = append(errs, fmt.Errorf("hold is only for algorithm %s, not %s", Concurrency, s.Algorithm))
	}
	period := s.Hold
	if !s.Algorithm.HasHolds() {
		if s.Unit == 0 || int(s.Unit) >= len(unitMicros) {
			return nil, fmt.Errorf("unit %d is not known", s.Unit)
		}
		unit := unitMicros[s.Unit]
		s.Multiplier = max(s.Multiplier, 1)
		period = unit * int64(s.Multiplier)
		if err := s.checkWindow(unit); err != nil {
			errs = append(errs, err)
		}
	}
	calendar, err := newCalendar(&s)
	if err != nil {
		errs = append(errs, err)
	}
	if s.Burst != 0 && !s.Algorithm.UsesBurst() {
		errs = append(errs, fmt.Errorf("burst is only for algorithm %s, not %s", TokenBucket, s.Algorithm))
	}
	if r := s.FallbackRatio; math.IsNaN(r) || r < 0 || r > 1 {
		errs = append(errs, fmt.Errorf("fallback_ratio %v must be above 0 and at most 1", r))
	}
	errs = append(errs, s.checkLease()...)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	l := &Limit{Spec: s, period: period, max: int64(s.Requests), calendar: calendar}
	l.capacity = l.max
	if s.Burst > 0 && l.max > 0 {
		l.capacity = int64(s.Burst)
	}
	l.maxLeasePermits = s.maxLeasePermitsOf(l.capacity)
	if s.Algorithm.UsesBurst() && l.max > 0 {
		l.capacity -= l.maxLeasePermits
		if maxBurst, _ := mulAddDiv(MaxPeriod, l.max, 0, l.period); l.capacity > maxBurst { // an empty bucket must refill within MaxPeriod
			return nil, fmt.Errorf("burst %d would take more than ten years to refill; at %d per %s it can be at most %d", s.Burst, s.Requests, l.Window(), maxBurst)
		}
		l.fillTime = l.refillTime(l.capacity)
	}
	l.tick = (l.period + maxTicks - 1) / maxTicks
	l.ticks = (l.period + l.tick - 1) / l.tick
	l.tag = algorithms[s.Algorithm].tag
	switch { // the part for the window is 60 for a minute, 250ms, or EuropeBerlinday1
	case s.Algorithm.HasHolds():
	case calendar != nil:
		l.tag += calendar.tag
	case period%second != 0:
		l.tag += strconv.FormatInt(period/1000, 10) + "ms"
	default:
		l.tag += strconv.FormatInt(period/second, 10)
	}
	l.tag += [...]string{Region: "", Instance: "i", Global: "g"}[s.Scope]
	return l, nil
}

func (s *Spec) checkWindow(unit int64) error {
	if maxMultiplier := MaxPeriod / unit; int64(s.Multiplier) > maxMultiplier {
		return fmt.Errorf("unit_multiplier %d makes the window longer than ten years; with unit %s it can be at most %d", s.Multiplier, s.Unit, maxMultiplier)
	}
	if period := unit * int64(s.Multiplier); period < minPeriod {
		return fmt.Errorf("unit_multiplier %d makes the window %d ms long; with unit %s it must be at least %d", s.Multiplier, period/1000, s.Unit, minPeriod/unit)
	}
	return nil
}

// DurationText returns the text of a duration, as in limits files: "30s", "1h30m".
func DurationText(micros int64) string {
	text := (time.Duration(micros) * time.Microsecond).String()
	for _, zeroEnd := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zeroEnd) {
			text = text[:len(text)-len("0s")]
		}
	}
	return text
}

// Period returns the length of the window in microseconds, or the Hold of Concurrency. A window in a time
// zone can be shorter or longer.
func (l *Limit) Period() int64 { return l.period }

// Max returns the number of hits that a window admits: Requests.
func (l *Limit) Max() int64 { return l.max }

// Capacity returns the largest number of hits that can be spent at once.
func (l *Limit) Capacity() int64 { return l.capacity }

// Tag returns the part of a counter's name that says how it counts: the algorithm, the window, and the scope: an i for one
// counter per replica, and a g for regions that share the limit. Examples are "fw60", "tb1i" and "cc". A Tag has letters and digits only. Two limits with the same Tag and
// key share a counter.
func (l *Limit) Tag() string { return l.tag }

// PerWindow returns the text that follows the number of a limit: "per minute", or "at a time" with Concurrency.
func (l *Limit) PerWindow() string {
	if l.Algorithm.HasHolds() {
		return "at a time"
	}
	return "per " + l.Window()
}

// Window returns the window in words: "minute", "15 minutes". It is empty with Concurrency.
func (l *Limit) Window() string {
	text := l.Unit.String()
	if l.Multiplier > 1 {
		text = strconv.FormatUint(uint64(l.Multiplier), 10) + " " + text + "s"
	}
	if l.Timezone != "" {
		text += " in " + l.Timezone
	}
	return text
}

// String returns the limit in short: "10 per minute, sliding_log".
func (l *Limit) String() string {
	s := strconv.FormatUint(uint64(l.Requests), 10) + " " + l.PerWindow()
	if l.Algorithm != DefaultAlgorithm {
		s += ", " + l.Algorithm.String()
	}
	if burst := l.capacity + l.burstPermits(); burst != l.max {
		s += ", burst " + strconv.FormatInt(burst, 10)
	}
	if l.Algorithm.HasHolds() {
		s += ", hold " + DurationText(l.Hold)
	}
	switch l.Scope {
	case Instance:
		s += ", per instance"
	case Global:
		s += ", over all regions"
	}
	return s
}

// State is the state of the counter of one key, for limits of one Tag. The zero value has spent nothing.
type State struct {
	a, b, c int64 // their meaning depends on the algorithm; the comment of its function explains them under "State:"
	log     *Log  // nil except for slidingLog and concurrency
}

// Numbers is a State without its log. It has no pointers, so the garbage collector reads no tables of Numbers.
type Numbers struct{ a, b, c int64 }

// Split returns the numbers and the log of s. The Log is nil except for SlidingLog and Concurrency.
func (s *State) Split() (Numbers, *Log) { return Numbers{s.a, s.b, s.c}, s.log }

// Join returns the State with n and log. It undoes Split.
func (n Numbers) Join(log *Log) State { return State{n.a, n.b, n.c, log} }

// IsZero reports whether the key has spent nothing. A store can forget such a State.
func (s *State) IsZero() bool { return *s == State{} }

// EntryCount returns the number of log entries of s, at most MaxLogEntries. For Concurrency, it returns the number of
// log entries that need as much memory as the holds of s.
func (s *State) EntryCount() int {
	switch {
	case s.log == nil:
		return 0
	case s.log.holds != nil:
		return logEntriesPerHold * (len(s.log.holds.holds) + len(s.log.holds.expiries))
	}
	return s.log.len()
}

// Result is the answer to one Take.
type Result struct {
	// Allowed reports whether the hits pass. Either all hits of a Take pass or none.
	Allowed bool

	// Remaining is the capacity minus the hits that are spent after this Take. It is negative if there is a debt.
	Remaining int64

	// ResetAfter is the time in microseconds until all spent hits are forgotten. For aligned windows,
	// it is the time until the window ends, even if nothing is spent. For Concurrency, it is the time until
	// the named hold of the hits expires, or else until the first hold expires.
	ResetAfter int64

	// RetryAfter is the time in microseconds until the same hits pass if no other hits come. It is Never if the hits
	// exceed the capacity. If Allowed is true, only Limit.TimeUntilAdmitted uses RetryAfter.
	RetryAfter int64

	// HoldExists reports whether the hits or the peek had the id of a hold that existed already. Such hits renew the hold, and take
	// no further slots.
	HoldExists bool
}

// Spent returns the number of spent hits of a counter with the answer r.
func (l *Limit) Spent(r Result) int64 { return l.capacity - r.Remaining }

// Take decides whether n hits pass at time now and charges them to s. An n beyond ±MaxHits counts as ±MaxHits.
//
// A negative n refunds hits. A refund is always allowed and refunds at most the spent hits.
//
// An n of 0 peeks. A peek is denied if one more hit would be denied. For an algorithm with ResetsAtWindowEnd, a peek is
// denied only if the count exceeds the limit.
//
// If the clock goes back, s keeps its own time until the clock reaches that time again. If the clock goes
// back by more than a window, s restarts at now and keeps everything that is spent.
func (l *Limit) Take(s *State, now, n int64) Result {
	return l.TakeWithChargeDenied(s, now, n, l.ChargeDenied)
}

// TakeHold does what Take does, for the hold with this id. Without an id or without holds, it calls Take.
func (l *Limit) TakeHold(s *State, now, n int64, id string) Result {
	if id == "" || !l.Algorithm.HasHolds() {
		return l.Take(s, now, n)
	}
	return concurrency(s, l, now, min(max(n, -MaxHits), MaxHits), id)
}

// TakeWithChargeDenied does what Take does, with chargeDenied in place of l.ChargeDenied.
func (l *Limit) TakeWithChargeDenied(s *State, now, n int64, chargeDenied bool) Result {
	return algorithms[l.Algorithm].take(s, l, now, min(max(n, -MaxHits), MaxHits), chargeDenied)
}

// TimeUntilForgotten returns the time in microseconds until l has forgotten the hits of an allowed Take with the
// Result r. With holds, r.ResetAfter can be about another anonymous hold, so TimeUntilForgotten returns Hold.
func (l *Limit) TimeUntilForgotten(r Result) int64 {
	if l.Algorithm.HasHolds() {
		return l.Hold
	}
	return r.ResetAfter
}

// TimeUntilAdmitted returns the time in microseconds until n further hits pass. r is the Result of n hits that l has just
// charged or denied. The time is Never if the hits can't pass. It can be a microsecond too long for a token bucket.
func (l *Limit) TimeUntilAdmitted(n int64, r Result) int64 {
	switch {
	case !r.Allowed:
		return r.RetryAfter
	case n <= r.Remaining || n <= 0 || r.HoldExists:
		return 0
	case n > l.capacity: // the fallback or permits of a lease have admitted the hits, which l would deny
		return Never
	case l.Algorithm.ResetsAtWindowEnd():
		return r.ResetAfter
	case l.Algorithm.UsesBurst():
		return max(span{r.ResetAfter, 0}.sub(l.refillTime(l.capacity-n), l.max).ceil(), 0)
	}
	return r.RetryAfter
}

// DurationUntilReset returns the wait in microseconds that the response with the Result r tells the caller. If the
// hits can never pass, the wait lasts until the aligned window ends, or one window if windows are not aligned.
func (l *Limit) DurationUntilReset(r Result) int64 {
	switch {
	case r.Allowed || r.RetryAfter == Never && l.Algorithm.AlignsWindows():
		return r.ResetAfter
	case r.RetryAfter == Never:
		return l.period
	}
	return r.RetryAfter
}

// ResultFromPeek turns the Result of a peek into the Result of n hits that are not charged. If the hits don't pass,
// RetryAfter is ResetAfter, which is an upper bound, or Never if n exceeds the capacity.
func (l *Limit) ResultFromPeek(peek Result, n int64) Result {
	peek.Allowed, peek.RetryAfter = n <= peek.Remaining || peek.HoldExists, 0
	switch {
	case peek.Allowed:
	case n > l.capacity:
		peek.RetryAfter = Never
	default:
		peek.RetryAfter = peek.ResetAfter
	}
	return peek
}
