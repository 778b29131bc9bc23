package limit

import (
	"fmt"
	"slices"
	"sort"
)

// The bounds of holds.
const (
	DefaultHold    = 30 * second     // Hold of limits that have none
	MinHold        = second / 10     // of Hold
	MaxHold        = 86_400 * second // of Hold
	MaxHoldID      = 64              // bytes of the id of a hold
	maxHoldEntries = 100_000         // members of the sorted set in Redis, where a hold of several slots has two
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

// logEntriesPerHold is the number of hits in a log that need as much memory as a hold, or as an id with its place in
// the map.
const logEntriesPerHold = 2

type hold struct {
	expiry, slots int64
	id            string // empty for anonymous holds; all anonymous holds of one expiry are one hold
}

type holdSet struct {
	holds    []hold           // by expiry; of those with one expiry, the anonymous hold comes first
	expiries map[string]int64 // of the named holds, by id
	entries  int64            // see maxHoldEntries
}

// concurrency counts the holders of a key. A hit of n takes n slots. The slots are free again after
// a release, or when Hold has passed. At most Max slots are taken at any time.
//
// If the hold of id exists, the hit renews it: the hold then expires at now + Hold, and takes no further slot.
// A negative n with an id ends exactly the hold of this id, whatever n is.
//
// A negative n without an id ends -n slots of the anonymous holds that expire first. This never frees a slot
// too early, if each holder releases before its own hold expires: a release takes the earliest end off the
// list, so each other holder has a counted hold that ends no sooner than its own.
//
// An n of -MaxHits is a reset, so it ends the named holds as well. Denied hits are never charged.
//
// State: a is the number of taken slots, and log.holds has the holds.
func concurrency(s *State, l *Limit, now, n int64, id string) Result {
	log := s.log
	if log == nil {
		log = &emptyHolds
	}
	g := log.holds
	total := s.a - g.expire(now)

	var r Result
	place, exists := g.find(id)
	switch {
	case n < 0:
		r.Allowed = true
		total -= g.release(n, id)
	case exists:
		r.Allowed, r.Held = true, true
		if n > 0 {
			g.setExpiry(place, now+l.period)
		}
	default:
		r.Allowed = total+max(n, 1) <= l.max && g.entries < maxHoldEntries
		if n > 0 && r.Allowed {
			if s.log == nil {
				log = &Log{holds: new(holdSet)}
				g = log.holds
			}
			total += n
			g.add(hold{now + l.period, n, id})
		}
	}
	r.Remaining = l.max - total
	if !r.Allowed || n > max(r.Remaining, 0) && id == "" {
		r.RetryAfter = Never
		if maxTaken := l.max - max(n, 1); maxTaken >= 0 {
			r.RetryAfter = g.expiryAfter(max(total-maxTaken, 1)) - now
		}
	}
	if len(g.holds) == 0 {
		*s = State{}
		return r
	}
	end, isNamed := g.expiries[id]
	if !isNamed {
		end = g.expiryAfter(1)
	}
	r.ResetAfter = end - now
	s.a, s.log = total, log
	return r
}

func concurrencyWithoutID(s *State, l *Limit, now, n int64, _ bool) Result {
	return concurrency(s, l, now, n, "")
}

// Undo reverts an admitted Take or TakeHold of n hits at the same now. oldExpiry is the earlier expiry of the
// hold that the hits have renewed, or 0.
func (l *Limit) Undo(s *State, now, n int64, id string, oldExpiry int64) Result {
	if !l.Algorithm.HasHolds() || s.log == nil || id != "" && oldExpiry == 0 {
		return l.TakeHold(s, now, -n, id)
	}
	g := s.log.holds
	if place, exists := g.find(id); exists {
		g.setExpiry(place, oldExpiry)
	} else if id == "" {
		s.a -= g.takeBack(now+l.period, n)
	}
	return l.TakeHold(s, now, 0, id)
}

// takeBack removes up to n slots of the anonymous hold with this expiry, and returns their number. A release
// would remove the hold that expires first. If its holder has crashed, a slot would stay taken for too long.
func (g *holdSet) takeBack(expiry, n int64) int64 {
	i := g.firstFrom(expiry)
	if i == len(g.holds) || g.holds[i].expiry != expiry || g.holds[i].id != "" {
		return 0
	}
	n = min(n, g.holds[i].slots)
	g.setSlots(i, g.holds[i].slots-n)
	return n
}

// emptyHolds is the log of a key without holds. It must not be changed.
var emptyHolds = Log{holds: new(holdSet)}

// LastExpiry returns the time at which the last hold of s expires, or 0 without holds.
func (s *State) LastExpiry() int64 {
	if s.log == nil || s.log.holds == nil || len(s.log.holds.holds) == 0 {
		return 0
	}
	return s.log.holds.holds[len(s.log.holds.holds)-1].expiry
}

// firstFrom returns the place of the first hold that expires at this time or later.
func (g *holdSet) firstFrom(expiry int64) int {
	return sort.Search(len(g.holds), func(i int) bool { return g.holds[i].expiry >= expiry })
}

func (g *holdSet) find(id string) (place int, exists bool) {
	expiry, exists := g.expiries[id]
	if !exists {
		return 0, false
	}
	place = g.firstFrom(expiry)
	for g.holds[place].id != id {
		place++
	}
	return place, true
}

// expire ends the holds that have expired at now, and returns the number of their slots.
func (g *holdSet) expire(now int64) (slots int64) {
	for len(g.holds) > 0 && g.holds[0].expiry <= now {
		slots += g.holds[0].slots
		g.setSlots(0, 0)
	}
	return slots
}

// release ends the hold with this id, or else -n slots of anonymous holds. A reset ends all holds. release
// returns the number of the slots.
func (g *holdSet) release(n int64, id string) (slots int64) {
	if id != "" {
		if i, exists := g.find(id); exists {
			slots = g.holds[i].slots
			g.setSlots(i, 0)
		}
		return slots
	}
	for i := 0; i < len(g.holds) && slots < -n; {
		h := g.holds[i]
		if h.id != "" && n != -MaxHits {
			i++
			continue
		}
		ended := min(h.slots, -n-slots)
		slots += ended
		g.setSlots(i, h.slots-ended)
	}
	return slots
}

// add adds h. If h is anonymous, its slots join the anonymous hold with the same expiry.
func (g *holdSet) add(h hold) {
	i := g.firstFrom(h.expiry)
	if h.id != "" {
		i = g.firstFrom(h.expiry + 1)
		if g.expiries == nil {
			g.expiries = map[string]int64{}
		}
		g.expiries[h.id] = h.expiry
	} else if i < len(g.holds) && g.holds[i].expiry == h.expiry && g.holds[i].id == "" {
		g.setSlots(i, g.holds[i].slots+h.slots)
		return
	}
	g.holds = slices.Insert(g.holds, i, h)
	g.entries += h.entries()
}

func (g *holdSet) setExpiry(i int, expiry int64) {
	h := g.holds[i]
	g.setSlots(i, 0)
	h.expiry = expiry
	g.add(h)
}

// setSlots changes the slots of hold i. It removes a hold without slots.
func (g *holdSet) setSlots(i int, slots int64) {
	h := &g.holds[i]
	g.entries -= h.entries()
	if slots > 0 {
		h.slots = slots
		g.entries += h.entries()
		return
	}
	delete(g.expiries, h.id)
	if len(g.expiries) == 0 {
		g.expiries = nil // a map keeps the memory of its largest size
	}
	if i == 0 {
		*h = hold{}
		g.holds = g.holds[1:]
	} else {
		g.holds = slices.Delete(g.holds, i, i+1)
	}
	if len(g.holds) == 0 {
		g.holds = nil
	}
}

func (h hold) entries() int64 {
	if h.slots > 1 {
		return 2
	}
	return 1
}

// expiryAfter returns the time by which at least this number of slots is free. As many slots must be taken.
func (g *holdSet) expiryAfter(slots int64) (expiry int64) {
	for i := 0; slots > 0; i++ {
		expiry = g.holds[i].expiry
		slots -= g.holds[i].slots
	}
	return expiry
}
