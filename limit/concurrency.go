package limit

import (
	"fmt"
	"slices"
	"sort"
)

// The bounds of holds.
const (
	DefaultHold    = 30 * second     // a Hold of 0 in a Spec means DefaultHold
	MinHold        = second / 10     // the shortest Hold
	MaxHold        = 86_400 * second // the longest Hold
	MaxHoldID      = 64              // the most bytes in the id of a hold
	maxHoldEntries = 100_000         // the most members of the sorted set in which Redis keeps the holds of a key
)

// CheckHoldID returns an error unless id has 1 to MaxHoldID visible ASCII characters.
func CheckHoldID(id string) error {
	if len(id) == 0 || len(id) > MaxHoldID {
		return fmt.Errorf("%s: got %d bytes, want 1 to %d", HoldKey, len(id), MaxHoldID)
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return fmt.Errorf("%s: got byte 0x%02X at position %d, want visible ASCII characters", HoldKey, id[i], i+1)
		}
	}
	return nil
}

// logEntriesPerHold is the number of log entries that need as much memory as a hold, or as an element of expiries.
const logEntriesPerHold = 2

// hold has the slots of one holder. The expiry is in microseconds since 1970.
type hold struct {
	expiry, slots int64
	id            string // empty for an anonymous hold; anonymous holds with the same expiry are one hold
}

type holdSet struct {
	holds        []hold           // sorted by expiry; of holds with the same expiry, the anonymous hold comes first
	expiries     map[string]int64 // the expiries of the named holds; the key is the id
	redisMembers int64            // the number of members that lua/concurrency.lua would store for the holds in Redis
}

// concurrency counts the slots that holders of a key have taken. A hit of n takes n slots. The slots are free again after
// a release, or when Hold has passed. At most Max slots are taken at any time.
//
// If a hold with this id exists, the hit renews the hold: the hold then expires at now + Hold, and takes no further
// slot. Any negative n with an id ends the hold with this id.
//
// A negative n without an id frees -n slots of the anonymous holds that expire first. No slot becomes free too
// early if each holder releases before its own hold expires. For example, A's hold expires at 10 s and B's at 20 s. B's
// release removes the hold that expires at 10 s. The other hold then stands for A, which releases before 10 s.
//
// An n of -MaxHits is a reset, and ends the named holds too. Denied hits are never charged.
//
// State: a is the number of taken slots, and log.holds has the holds.
func concurrency(s *State, l *Limit, now, n int64, id string) Result {
	log := s.log
	if log == nil {
		log = &emptyHolds
	}
	set := log.holds
	takenSlots := s.a - set.expire(now)

	var r Result
	i, exists := set.findIndex(id)
	switch {
	case n < 0:
		r.Allowed = true
		takenSlots -= set.release(n, id)
	case exists:
		r.Allowed, r.HoldExists = true, true
		if n > 0 {
			set.setExpiry(i, now+l.period)
		}
	default:
		r.Allowed = takenSlots+max(n, 1) <= l.max && set.redisMembers < maxHoldEntries
		if n > 0 && r.Allowed {
			if s.log == nil {
				log = &Log{holds: new(holdSet)}
				set = log.holds
			}
			takenSlots += n
			set.add(hold{now + l.period, n, id})
		}
	}
	r.Remaining = l.max - takenSlots
	if !r.Allowed || n > max(r.Remaining, 0) && id == "" {
		r.RetryAfter = Never
		if maxTakenSlots := l.max - max(n, 1); maxTakenSlots >= 0 { // the hit passes if at most maxTakenSlots slots are taken
			r.RetryAfter = set.timeWhenSlotsExpire(max(takenSlots-maxTakenSlots, 1)) - now
		}
	}
	if len(set.holds) == 0 {
		*s = State{}
		return r
	}
	end, isNamed := set.expiries[id]
	if !isNamed {
		end = set.timeWhenSlotsExpire(1)
	}
	r.ResetAfter = end - now
	s.a, s.log = takenSlots, log
	return r
}

func concurrencyWithoutID(s *State, l *Limit, now, n int64, _ bool) Result {
	return concurrency(s, l, now, n, "")
}

// Undo reverts an admitted Take or TakeHold of n hits at the same now. If the hits renewed a hold, oldExpiry is the
// expiry of the hold before the renewal. Otherwise oldExpiry is 0.
func (l *Limit) Undo(s *State, now, n int64, id string, oldExpiry int64) Result {
	if !l.Algorithm.HasHolds() || s.log == nil || id != "" && oldExpiry == 0 {
		return l.TakeHold(s, now, -n, id)
	}
	set := s.log.holds
	if i, exists := set.findIndex(id); exists {
		set.setExpiry(i, oldExpiry)
	} else if id == "" {
		s.a -= set.removeAnonymousHold(now+l.period, n)
	}
	return l.TakeHold(s, now, 0, id)
}

// removeAnonymousHold removes up to n slots of the anonymous hold with this expiry, and returns the number of removed slots.
// Undo does not call release, because release removes the hold that expires first. If the holder of this hold has
// crashed, its slots must become free at this expiry, and not later.
func (set *holdSet) removeAnonymousHold(expiry, n int64) int64 {
	i := set.searchExpiry(expiry)
	if i == len(set.holds) || set.holds[i].expiry != expiry || set.holds[i].id != "" {
		return 0
	}
	n = min(n, set.holds[i].slots)
	set.setSlots(i, set.holds[i].slots-n)
	return n
}

// emptyHolds is the log of a key without holds. No code may change emptyHolds.
var emptyHolds = Log{holds: new(holdSet)}

// LastExpiry returns the time at which the last hold of s expires, or 0 without holds.
func (s *State) LastExpiry() int64 {
	if s.log == nil || s.log.holds == nil || len(s.log.holds.holds) == 0 {
		return 0
	}
	return s.log.holds.holds[len(s.log.holds.holds)-1].expiry
}

// searchExpiry returns the index of the first hold that expires at this time or later.
func (set *holdSet) searchExpiry(expiry int64) int {
	return sort.Search(len(set.holds), func(i int) bool { return set.holds[i].expiry >= expiry })
}

func (set *holdSet) findIndex(id string) (i int, exists bool) {
	expiry, exists := set.expiries[id]
	if !exists {
		return 0, false
	}
	i = set.searchExpiry(expiry)
	for set.holds[i].id != id {
		i++
	}
	return i, true
}

// expire removes the holds that have expired at now, and returns the number of their slots.
func (set *holdSet) expire(now int64) (slots int64) {
	for len(set.holds) > 0 && set.holds[0].expiry <= now {
		slots += set.holds[0].slots
		set.setSlots(0, 0)
	}
	return slots
}

// release ends the hold with this id. Without an id, it frees -n slots of anonymous holds, or all slots if n is a reset.
// It returns the number of slots that became free.
func (set *holdSet) release(n int64, id string) (slots int64) {
	if id != "" {
		if i, exists := set.findIndex(id); exists {
			slots = set.holds[i].slots
			set.setSlots(i, 0)
		}
		return slots
	}
	for i := 0; i < len(set.holds) && slots < -n; {
		h := set.holds[i]
		if h.id != "" && n != -MaxHits {
			i++
			continue
		}
		freedSlots := min(h.slots, -n-slots)
		slots += freedSlots
		set.setSlots(i, h.slots-freedSlots)
	}
	return slots
}

// add adds h. If h is anonymous, its slots join the anonymous hold with the same expiry.
func (set *holdSet) add(h hold) {
	i := set.searchExpiry(h.expiry)
	if h.id != "" {
		i = set.searchExpiry(h.expiry + 1)
		if set.expiries == nil {
			set.expiries = map[string]int64{}
		}
		set.expiries[h.id] = h.expiry
	} else if i < len(set.holds) && set.holds[i].expiry == h.expiry && set.holds[i].id == "" {
		set.setSlots(i, set.holds[i].slots+h.slots)
		return
	}
	set.holds = slices.Insert(set.holds, i, h)
	set.redisMembers += h.redisMembers()
}

func (set *holdSet) setExpiry(i int, expiry int64) {
	h := set.holds[i]
	set.setSlots(i, 0)
	h.expiry = expiry
	set.add(h)
}

func (set *holdSet) setSlots(i int, slots int64) {
	h := &set.holds[i]
	set.redisMembers -= h.redisMembers()
	if slots > 0 {
		h.slots = slots
		set.redisMembers += h.redisMembers()
		return
	}
	delete(set.expiries, h.id)
	if len(set.expiries) == 0 {
		set.expiries = nil // a map keeps the memory of its largest size
	}
	if i == 0 {
		*h = hold{}
		set.holds = set.holds[1:]
	} else {
		set.holds = slices.Delete(set.holds, i, i+1)
	}
	if len(set.holds) == 0 {
		set.holds = nil
	}
}

// redisMembers returns the number of members that lua/concurrency.lua would store for h in Redis.
func (h hold) redisMembers() int64 { return min(h.slots, 2) }

// timeWhenSlotsExpire returns the time at which at least this number of slots has expired. The set must have at least
// this number of slots.
func (set *holdSet) timeWhenSlotsExpire(slots int64) (expiry int64) {
	for i := 0; slots > 0; i++ {
		expiry = set.holds[i].expiry
		slots -= set.holds[i].slots
	}
	return expiry
}
