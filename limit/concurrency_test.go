package limit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHoldsAreTakenRenewedAndReleased(t *testing.T) {
	const id, otherID = "worker-1", "worker-2"
	type holdStep struct {
		time       int64 // seconds
		n          int64
		id         string
		allowed    bool
		holdExists bool
		freeSlots  int64
		reset      int64 // seconds
		retry      int64 // seconds, or Never
	}
	for name, steps := range map[string][]holdStep{
		"a hold takes its slots until a release": {
			{time: 0, n: 1, id: id, allowed: true, freeSlots: 3, reset: 30},
			{time: 10, n: 2, id: otherID, allowed: true, freeSlots: 1, reset: 30},
			{time: 10, n: 2, allowed: false, freeSlots: 1, reset: 20, retry: 20},
			{time: 15, n: -1, id: id, allowed: true, freeSlots: 2, reset: 25},
			{time: 15, n: 2, allowed: true, freeSlots: 0, reset: 25, retry: 25},
			{time: 16, n: -1, id: otherID, allowed: true, freeSlots: 2, reset: 29}, // the whole hold ends
		},
		"a renewed hold takes no further slot and lasts longer": {
			{time: 0, n: 4, id: id, allowed: true, freeSlots: 0, reset: 30},
			{time: 20, n: 1, id: otherID, freeSlots: 0, reset: 10, retry: 10},
			{time: 20, n: 4, id: id, allowed: true, holdExists: true, freeSlots: 0, reset: 30},
			{time: 30, n: 1, id: otherID, freeSlots: 0, reset: 20, retry: 20},
			{time: 50, n: 1, id: otherID, allowed: true, freeSlots: 3, reset: 30},
		},
		"a hold expires, and its late release frees no other slot": {
			{time: 0, n: 1, id: id, allowed: true, freeSlots: 3, reset: 30},
			{time: 29, n: 3, id: otherID, allowed: true, freeSlots: 0, reset: 30},
			{time: 30, n: 1, allowed: true, freeSlots: 0, reset: 29, retry: 29},
			{time: 31, n: -1, id: id, allowed: true, freeSlots: 0, reset: 28},
			{time: 31, n: 1, id: id, freeSlots: 0, reset: 28, retry: 28},
		},
		"an anonymous release ends the hold that expires first": {
			{time: 0, n: 1, allowed: true, freeSlots: 3, reset: 30},
			{time: 10, n: 2, allowed: true, freeSlots: 1, reset: 20, retry: 20},
			{time: 12, n: -2, allowed: true, freeSlots: 3, reset: 28},
			{time: 12, n: -9, allowed: true, freeSlots: 4},
		},
		"an anonymous release ends no named hold": {
			{time: 0, n: 1, id: id, allowed: true, freeSlots: 3, reset: 30},
			{time: 0, n: -5, allowed: true, freeSlots: 3, reset: 30},
			{time: 0, n: -MaxHits, allowed: true, freeSlots: 4}, // a reset
		},
		"a peek holds nothing": {
			{time: 0, n: 0, id: id, allowed: true, freeSlots: 4},
			{time: 0, n: 4, id: id, allowed: true, freeSlots: 0, reset: 30},
			{time: 5, n: 0, id: id, allowed: true, holdExists: true, freeSlots: 0, reset: 25},
			{time: 5, n: 0, id: otherID, freeSlots: 0, reset: 25, retry: 25},
			{time: 30, n: 0, id: id, allowed: true, freeSlots: 4},
		},
		"a hit of more slots than the limit never passes": {
			{time: 0, n: 5, id: id, freeSlots: 4, retry: Never},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := mustNew(t, Spec{Algorithm: Concurrency, Requests: 4})
			var s State
			for i, step := range steps {
				want := Result{Allowed: step.allowed, HoldExists: step.holdExists, Remaining: step.freeSlots, ResetAfter: step.reset * second, RetryAfter: step.retry * second}
				if step.retry == Never {
					want.RetryAfter = Never
				}
				assert.Equal(t, want, l.TakeHold(&s, epoch+step.time*second, step.n, step.id), "step %d", i)
			}
		})
	}
}

// slotHolder is a caller that has taken slots.
type slotHolder struct {
	id            string
	slots, expiry int64
}

// TestHoldersNeverExceedTheLimit has callers that take, renew, release and lose holds. A holder releases its hold
// before the hold expires, or never. At any time, the holders of live holds have at most Max slots, and the counter has
// counted all these slots.
func TestHoldersNeverExceedTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := mustNew(t, Spec{Algorithm: Concurrency, Requests: rapid.Uint32Range(1, 12).Draw(t, "slots"), Hold: 10 * second})
		var s State
		var holders []slotHolder
		now, idCount, everyHoldHasID := int64(epoch), 0, true
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += rapid.Int64Range(0, 4*second).Draw(t, "time")
			holders = liveHolders(holders, now)
			drawHolder := func() int { return rapid.IntRange(0, len(holders)-1).Draw(t, "holder") }
			switch action := rapid.SampledFrom([]string{"take", "take", "release", "renew", "lose"}).Draw(t, "action"); {
			case action == "take" || len(holders) == 0:
				h := slotHolder{slots: rapid.Int64Range(1, 3).Draw(t, "n"), expiry: now + l.Period()}
				if rapid.Bool().Draw(t, "named") {
					idCount++
					h.id = fmt.Sprint("id", idCount)
				} else {
					everyHoldHasID = false
				}
				if l.TakeHold(&s, now, h.slots, h.id).Allowed {
					holders = append(holders, h)
				}
			case action == "release":
				i := drawHolder()
				l.TakeHold(&s, now, -holders[i].slots, holders[i].id)
				holders = append(holders[:i], holders[i+1:]...)
			case action == "renew":
				if i := drawHolder(); holders[i].id != "" {
					require.True(t, l.TakeHold(&s, now, 1, holders[i].id).HoldExists)
					holders[i].expiry = now + l.Period()
				}
			} // "lose": the holder does nothing, so its hold expires
			var slots int64
			for _, h := range holders {
				slots += h.slots
			}
			countedSlots := l.Spent(l.Take(&s, now, 0))
			require.LessOrEqual(t, slots, l.Max())
			require.LessOrEqual(t, slots, countedSlots, "each slot of a holder is counted")
			if everyHoldHasID {
				require.Equal(t, slots, countedSlots)
			}
		}
	})
}

// liveHolders returns the holders with holds that have not expired.
func liveHolders(holders []slotHolder, now int64) (liveHolders []slotHolder) {
	for _, h := range holders {
		if h.expiry > now {
			liveHolders = append(liveHolders, h)
		}
	}
	return liveHolders
}

func TestHoldIDsAreVisibleASCII(t *testing.T) {
	for id, want := range map[string]string{
		"a":                     "",
		"7d8f!~":                "",
		strings.Repeat("x", 64): "",
		"":                      "rls-hold: got 0 bytes, want 1 to 64",
		strings.Repeat("x", 65): "rls-hold: got 65 bytes, want 1 to 64",
		"a b":                   "rls-hold: got byte 0x20 at position 2, want visible ASCII characters",
		"é":                     "rls-hold: got byte 0xC3 at position 1, want visible ASCII characters",
	} {
		if err := CheckHoldID(id); want == "" {
			assert.NoError(t, err)
		} else {
			assert.EqualError(t, err, want)
		}
	}
}

func TestHoldHasARangeAndADefault(t *testing.T) {
	assert.Equal(t, "4 at a time, concurrency, hold 30s", mustNew(t, Spec{Algorithm: Concurrency, Requests: 4}).String())
	assert.Equal(t, "cc", mustNew(t, Spec{Algorithm: Concurrency, Requests: 4, Hold: MaxHold}).Tag())
	for want, s := range map[string]Spec{
		"hold 99.999ms must be at least 100ms and at most 24h":                        {Algorithm: Concurrency, Hold: MinHold - 1},
		"hold 24h1m must be at least 100ms and at most 24h":                           {Algorithm: Concurrency, Hold: MaxHold + 60*second},
		"hold is only for algorithm concurrency, not fixed_window":                    {Unit: Second, Hold: second},
		"burst is only for algorithm token_bucket, not concurrency":                   {Algorithm: Concurrency, Burst: 2},
		"lease is only for algorithms fixed_window and token_bucket, not concurrency": {Algorithm: Concurrency, Lease: true},
		"timezone is only for algorithm fixed_window, not concurrency":                {Algorithm: Concurrency, Timezone: "UTC"},
	} {
		_, err := New(s)
		assert.EqualError(t, err, want)
	}
}

func TestUndoRestoresTheHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := mustNew(t, Spec{Algorithm: Concurrency, Requests: 9, Hold: 10 * second})
		var s State
		now := int64(epoch)
		id := rapid.SampledFrom([]string{"", "a", "b"})
		for range rapid.IntRange(0, 12).Draw(t, "takes") {
			now += rapid.Int64Range(0, 2*second).Draw(t, "time")
			l.TakeHold(&s, now, rapid.Int64Range(-1, 3).Draw(t, "n"), id.Draw(t, "id"))
		}
		n, holdID := rapid.Int64Range(1, 3).Draw(t, "n"), id.Draw(t, "id")
		peek := l.TakeHold(&s, now, 0, holdID)
		wantState, oldExpiry := clone(s), int64(0)
		if peek.HoldExists {
			oldExpiry = now + peek.ResetAfter
		}
		if l.TakeHold(&s, now, n, holdID).Allowed {
			l.Undo(&s, now, n, holdID, oldExpiry)
		}
		for range 12 {
			for _, id := range []string{"", "a", "b"} {
				assert.Equal(t, l.TakeHold(&wantState, now, 0, id), l.TakeHold(&s, now, 0, id))
			}
			now += second
		}
	})
}

func TestOnlyAnonymousHoldsOfOneExpiryAreJoined(t *testing.T) {
	set := &holdSet{}
	for _, h := range []hold{{expiry: 10, slots: 1}, {expiry: 5, slots: 2}, {expiry: 10, slots: 3}, {id: "a", expiry: 10, slots: 1}, {expiry: 5, slots: 1}} {
		set.add(h)
	}
	assert.Equal(t, []hold{{expiry: 5, slots: 3}, {expiry: 10, slots: 4}, {id: "a", expiry: 10, slots: 1}}, set.holds)
}
