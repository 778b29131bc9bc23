package main

import (
	"math"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// clockError is the most that a replica's estimate of the clock of Redis can be wrong.
const clockError = windowMargin

// span is a time in which a holder has slots.
type span struct {
	from, to time.Duration
	slots    int64
}

// isDecidedByRedis reports whether Redis has decided a call of a holder.
func (r *callRecord) isDecidedByRedis() bool {
	return r.err == nil && r.slots.Err == nil && r.slots.Source == backend.SourceRedis
}

// certainSpans returns the times in which h certainly has its slots: from the answer to a call that was
// admitted until the release begins, or until the hold could expire. The calls are those for which
// isCounted returns true.
func (h *holder) certainSpans(hold time.Duration, isCounted func(*callRecord) bool) (spans []span) {
	for _, c := range h.takes {
		if !c.isHoldTaken() || !isCounted(c) {
			continue
		}
		end := c.start + hold - clockError
		if last := len(spans) - 1; last >= 0 && c.end <= spans[last].to {
			spans[last].to = max(spans[last].to, end)
		} else {
			spans = append(spans, span{c.end, end, h.slots})
		}
	}
	if h.release != nil {
		for i := range spans {
			spans[i].to = min(spans[i].to, h.release.start)
		}
	}
	return spans
}

// possibleSpan returns the time in which Redis can have a hold of h. It has no end if Redis may execute
// a call of h at any time, or if h is anonymous and never ends its hold.
func (h *holder) possibleSpan(hold time.Duration) span {
	s := span{h.takes[0].start, 0, h.slots}
	isTaken := false
	for _, c := range h.takes {
		if !c.isDecidedByRedis() {
			return span{s.from, math.MaxInt64, h.slots}
		}
		if c.isHoldTaken() {
			isTaken = true
			s.to = c.end + hold + clockError
		}
	}
	isReleased := h.release != nil && h.release.isDecidedByRedis()
	switch {
	case !isTaken:
		return span{}
	case isReleased:
		s.to = min(s.to, h.release.end)
	case h.id == "":
		s.to = math.MaxInt64
	}
	return s
}

// isMisplaced reports whether the release of h can have ended a hold of another holder: an anonymous
// release takes the hold that expires first. Its own hold can be elsewhere, or have expired.
func (h *holder) isMisplaced(hold time.Duration) bool {
	r := h.release
	return r != nil && h.id == "" && (!r.isDecidedByRedis() || !h.takes[0].isDecidedByRedis() || r.end > h.takes[0].start+hold-clockError)
}

// misplacedSlots returns the slots of the releases before a time that can have ended other holds.
func (c *checks) misplacedSlots(before time.Duration) (slots int64) {
	for _, h := range c.records.holders {
		if h.isMisplaced(c.plan.holds.hold) && h.release.start <= before {
			slots += h.slots
		}
	}
	return slots
}

// hasKnownExpiry reports whether no clock is set. Otherwise a hold can expire at any time.
func (c *checks) hasKnownExpiry() bool { return c.plan.clockSteps == 0 }

// checkHolders checks the bound of docs/failure.md on the slots that holders have at a time. Without
// Redis, each replica admits its share. A loss of data forgets all holds. An anonymous release that ends
// the hold of another holder can let one more in.
func (c *checks) checkHolders() {
	p := &c.plan.holds
	if p.slots == 0 || !c.hasKnownExpiry() {
		return
	}
	for _, r := range c.records.holdCalls {
		if r.isAfterRecovery && !r.slots.Allowed {
			c.fail("%s: denied after all holds have expired", r.name())
		}
	}
	var spans []span
	for _, h := range c.records.holders {
		spans = append(spans, h.certainSpans(p.hold, func(*callRecord) bool { return true })...)
	}
	for _, at := range spans {
		taken := int64(0)
		for _, s := range spans {
			if s.from <= at.from && at.from < s.to {
				taken += s.slots
			}
		}
		if bound := c.holderBound(at.from); taken > bound {
			c.fail("holders at %v: have %d slots, want at most %d", at.from, taken, bound)
			return
		}
	}
}

// holderBound returns the most slots that holders may have at a time.
func (c *checks) holderBound(at time.Duration) int64 {
	p := &c.plan.holds
	bound := int64(p.slots) + c.misplacedSlots(at)
	for _, loss := range c.lossTimes {
		if loss <= at {
			bound += int64(p.slots)
		}
	}
	for _, r := range c.replicas {
		bound += min(c.slotShare(), c.fallbackSlots(r, at))
	}
	return bound
}

// slotShare returns the slots that a replica may give to holders without Redis.
func (c *checks) slotShare() int64 {
	switch c.plan.failureMode {
	case "allow":
		return math.MaxInt32
	case "deny":
		return 0
	}
	return max(int64(c.plan.fallbackRatio*float64(c.plan.holds.slots)+1e-6), 1)
}

// fallbackSlots returns the slots that a replica has given without Redis to holders who can still have
// them. An anonymous holder can release a slot of somebody else, so its slots count forever.
func (c *checks) fallbackSlots(r *replica, at time.Duration) (slots int64) {
	for _, h := range c.records.holders {
		for _, t := range h.takes {
			if t.replica == r && t.start <= at && t.isHoldTaken() && t.slots.IsDegraded() && (h.id == "" || at <= t.end+c.plan.holds.hold) {
				slots += h.slots
				break
			}
		}
	}
	return slots
}

// checkTakenSlots checks the answers of Redis. Each shows how many slots are taken: at least those of
// the holds that certainly exist during the call, and at most those of the holds that can exist. So
// each release ends one hold, each renewal keeps its hold, and each hold ends when it expires.
func (c *checks) checkTakenSlots() {
	p := &c.plan.holds
	if p.slots == 0 || !c.hasKnownExpiry() || len(c.lossTimes) > 0 {
		return
	}
	var certain, possible []span
	for _, h := range c.records.holders {
		if len(h.takes) > 0 {
			certain = append(certain, h.certainSpans(p.hold, (*callRecord).isDecidedByRedis)...)
			possible = append(possible, h.possibleSpan(p.hold))
		}
	}
	hasMisplaced := c.misplacedSlots(math.MaxInt64) > 0
	for _, r := range c.records.holdCalls {
		if !r.isDecidedByRedis() {
			continue
		}
		least, most := int64(0), int64(0)
		for _, s := range certain {
			if s.from <= r.start && r.end <= s.to && !hasMisplaced {
				least += s.slots
			}
		}
		for _, s := range possible {
			if s.from <= r.end && r.start <= s.to {
				most += s.slots
			}
		}
		if taken := int64(p.slots) - r.slots.Remaining; taken < least || taken > most {
			c.fail("%s: %d slots were taken, want %d to %d", r.name(), taken, least, most)
		}
	}
}
