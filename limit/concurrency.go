package limit

import (
	"fmt"
	"slices"
	"sort"
)

const (
	// DefaultHold is the Hold of limits that have none, in microseconds.
	DefaultHold = 30 * second

	// MinHold is the minimum of Hold, in microseconds.
	MinHold = second / 10

	// MaxHold is the maximum of Hold, in microseconds.
	MaxHold = 86_400 * second

	// maxHoldEntries bounds the entries of one counter. An entry is a member of the sorted set in
	// Redis, and a hold of several slots has two.
	maxHoldEntries = 100_000
)

// MaxHoldID is the maximum length of the id of a hold, in bytes.
const MaxHoldID = 64

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

// A hold needs as much memory as this number of hits in a log. A named hold also has an id and a place
// in the map.
const (
	logEntriesPerAnonymousHold = 2
	logEntriesPerNamedHold     = 4
)

// hold is a number of slots that are taken until a time.
type hold struct {
	expiry, slots int64
	id            string // empty for anonymous holds; all anonymous holds of one expiry are one hold
}

// holdSet has the holds of one counter. Both lists start with the hold that expires first.
type holdSet struct {
	anonymous, named []hold
	expiries         map[string]int64 // of the named holds, by id
	entries          int64            // see maxHoldEntries
}

// concurrency counts the holders of a key. A hit of n takes n slots. The slots are free again after
// a release, or when Hold has passed. At most Max slots are taken at any time.
//
// If id is not empty, it names the hold of the hit. If the hold exists, the hit renews it: the hold
// then expires at now + Hold, and takes no further slot. A negative n with an id ends exactly the
// hold of this id, whatever n is. If there is no such hold, nothing changes.
//
// A negative n without an id ends -n slots of anonymous holds. The holds that expire first end
// first. This never frees a slot too early, if each holder releases before its own hold expires. To
// see why, sort the ends of the holders' own holds and the ends of the counted holds, the latest
// first. In each row, the counted hold ends no sooner than the own hold beside it:
//
//   - An acquire adds the same end to both lists.
//   - A release removes one holder, and the last counted hold. The holders below move up one row,
//     beside holds that end no sooner.
//   - An expiry removes the last rows of both lists.
//
// An n of -MaxHits is a reset, so it ends the named holds as well.
//
// Denied hits are never charged. ResetAfter is the time until the named hold of the hit expires,
// or else the time until the first hold expires.
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
	expiry, exists := g.expiries[id]
	switch {
	case n < 0:
		r.Allowed = true
		total -= g.release(n, id)
	case exists:
		r.Allowed, r.Held = true, true
		if n > 0 {
			h := g.remove(expiry, id)
			h.expiry = now + l.period
			g.add(h)
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
	if g.isEmpty() {
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

// concurrencyWithoutID is concurrency for hits without an id.
func concurrencyWithoutID(s *State, l *Limit, now, n int64, _ bool) Result {
	return concurrency(s, l, now, n, "")
}

// Undo reverts an admitted Take or TakeHold of n hits. now must be the time of that call. If the hits
// have renewed a hold, oldExpiry is the earlier expiry of the hold, in microseconds. Otherwise
// oldExpiry is 0.
func (l *Limit) Undo(s *State, now, n int64, id string, oldExpiry int64) Result {
	if !l.Algorithm.HasHolds() || s.log == nil || id != "" && oldExpiry == 0 {
		return l.TakeHold(s, now, -n, id)
	}
	g := s.log.holds
	if expiry, exists := g.expiries[id]; exists {
		h := g.remove(expiry, id)
		h.expiry = oldExpiry
		g.add(h)
	} else if id == "" {
		s.a -= g.takeBack(now+l.period, n)
	}
	return l.TakeHold(s, now, 0, id)
}

// takeBack removes up to n slots of the anonymous hold with this expiry, and returns their number.
// A release would remove the hold that expires first. If the holder of that hold has crashed, its
// slot would then be free later than it should be.
func (g *holdSet) takeBack(expiry, n int64) int64 {
	i := sort.Search(len(g.anonymous), func(i int) bool { return g.anonymous[i].expiry >= expiry })
	if i == len(g.anonymous) || g.anonymous[i].expiry != expiry {
		return 0
	}
	h := &g.anonymous[i]
	n = min(n, h.slots)
	g.entries -= h.entries()
	if h.slots -= n; h.slots > 0 {
		g.entries += h.entries()
	} else {
		g.anonymous = slices.Delete(g.anonymous, i, i+1)
	}
	return n
}

// emptyHolds is the log of a key without holds. It must not be changed.
var emptyHolds = Log{holds: new(holdSet)}

// LastExpiry returns the time at which the last hold of s expires, in microseconds, or 0 if s has
// no holds.
func (s *State) LastExpiry() int64 {
	if s.log == nil || s.log.holds == nil {
		return 0
	}
	var last int64
	for _, list := range [][]hold{s.log.holds.anonymous, s.log.holds.named} {
		if len(list) > 0 {
			last = max(last, list[len(list)-1].expiry)
		}
	}
	return last
}

func (g *holdSet) isEmpty() bool { return len(g.anonymous)+len(g.named) == 0 }

// expire ends the holds that have expired at now, and returns the number of their slots.
func (g *holdSet) expire(now int64) (slots int64) {
	for len(g.anonymous) > 0 && g.anonymous[0].expiry <= now {
		slots += g.removeFirst(&g.anonymous).slots
	}
	for len(g.named) > 0 && g.named[0].expiry <= now {
		slots += g.removeFirst(&g.named).slots
	}
	return slots
}

// release ends the hold with this id. If id is empty, release ends -n slots of anonymous holds, where
// n is negative. It returns the number of the slots.
func (g *holdSet) release(n int64, id string) (slots int64) {
	if id != "" {
		if expiry, exists := g.expiries[id]; exists {
			return g.remove(expiry, id).slots
		}
		return 0
	}
	for slots < -n && len(g.anonymous) > 0 {
		h := g.removeFirst(&g.anonymous)
		if keptSlots := slots + h.slots + n; keptSlots > 0 {
			h.slots -= keptSlots
			g.add(hold{h.expiry, keptSlots, ""})
		}
		slots += h.slots
	}
	for n == -MaxHits && len(g.named) > 0 {
		slots += g.removeFirst(&g.named).slots
	}
	return slots
}

// add adds h. If h is anonymous, its slots join the anonymous hold with the same expiry.
func (g *holdSet) add(h hold) {
	list := &g.named
	if h.id == "" {
		list = &g.anonymous
	}
	i := len(*list)
	if i > 0 && (*list)[i-1].expiry > h.expiry {
		i = sort.Search(i, func(i int) bool { return (*list)[i].expiry > h.expiry })
	}
	if h.id == "" && i > 0 && (*list)[i-1].expiry == h.expiry {
		g.entries -= (*list)[i-1].entries()
		(*list)[i-1].slots += h.slots
		g.entries += (*list)[i-1].entries()
		return
	}
	*list = slices.Insert(*list, i, h)
	g.entries += h.entries()
	if h.id != "" {
		if g.expiries == nil {
			g.expiries = map[string]int64{}
		}
		g.expiries[h.id] = h.expiry
	}
}

// remove removes the named hold with this expiry and id, which must exist, and returns it.
func (g *holdSet) remove(expiry int64, id string) hold {
	i := sort.Search(len(g.named), func(i int) bool { return g.named[i].expiry >= expiry })
	for g.named[i].id != id {
		i++
	}
	h := g.named[i]
	g.named = slices.Delete(g.named, i, i+1)
	g.forget(h)
	return h
}

// removeFirst removes the first hold of list, which is a list of g, and returns the hold.
func (g *holdSet) removeFirst(list *[]hold) hold {
	h := (*list)[0]
	(*list)[0] = hold{}
	*list = (*list)[1:]
	if len(*list) == 0 {
		*list = nil
	}
	g.forget(h)
	return h
}

// forget updates the numbers of g after h was removed from its list.
func (g *holdSet) forget(h hold) {
	g.entries -= h.entries()
	if h.id == "" {
		return
	}
	delete(g.expiries, h.id)
	if len(g.expiries) == 0 {
		g.expiries = nil // a map keeps the memory of its largest size
	}
}

// entries returns the number of entries of h.
func (h hold) entries() int64 {
	if h.slots > 1 {
		return 2
	}
	return 1
}

// expiryAfter returns the time by which at least this number of slots is free. At least as many slots
// must be taken.
func (g *holdSet) expiryAfter(slots int64) (expiry int64) {
	anonymous, named := g.anonymous, g.named
	for slots > 0 {
		next := &named
		if len(named) == 0 || len(anonymous) > 0 && anonymous[0].expiry < named[0].expiry {
			next = &anonymous
		}
		expiry = (*next)[0].expiry
		slots -= (*next)[0].slots
		*next = (*next)[1:]
	}
	return expiry
}
