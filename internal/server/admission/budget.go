package admission

import (
	"math"
	"time"
)

const (
	// framesPerCall is the number of frames of a small call: HEADERS and DATA.
	framesPerCall = 2

	// resetFrames is the number of frames that RST_STREAM counts as.
	resetFrames = 4

	framesPerReset = framesPerCall + resetFrames

	// resetsPerAnswer is the number of resets that an answered call allows. Behind an Envoy, hostile clients can
	// cancel many calls on the connection of all others, whose answers keep it open.
	resetsPerAnswer = 100

	// maxSavedSeconds bounds the frames that a connection can save for later, in seconds. After a stall of rls, all
	// resets of the clients that gave up arrive at once.
	maxSavedSeconds = 30

	// firstSeconds is the time whose frames a new connection can send at once. It is short, because a hostile
	// client can open many connections.
	firstSeconds = 0.125
)

// frameBudget bounds the frames that a client sends without answers. They cost CPU time.
type frameBudget struct {
	perSecond  float64 // 0 means no bound
	callFrames float64 // frames of the calls that can be in flight
	framesLeft int64
	refilledAt time.Time
	answers    int64 // answered calls of the connection at refilledAt
}

func newFrameBudget(o *Options, now time.Time) frameBudget {
	b := frameBudget{perSecond: float64(o.MaxResets * framesPerReset), callFrames: float64(o.MaxStreams * framesPerCall), refilledAt: now}
	b.framesLeft = int64(b.perSecond*firstSeconds + b.callFrames)
	return b
}

func (b *frameBudget) take(n int64) bool {
	if b.framesLeft < n {
		return false
	}
	b.framesLeft -= n
	return true
}

// refillAndTake adds the frames for the time and the answers since the last refill, and is then take.
func (b *frameBudget) refillAndTake(n, answers int64, now time.Time) bool {
	if b.perSecond == 0 {
		b.framesLeft = math.MaxInt64
		return true
	}
	framesForTime := min(now.Sub(b.refilledAt).Seconds(), 1) * b.perSecond
	framesForAnswers := float64(answers-b.answers) * resetsPerAnswer * framesPerReset
	b.framesLeft = int64(min(framesForTime+framesForAnswers, maxSavedSeconds*b.perSecond+b.callFrames))
	b.refilledAt, b.answers = now, answers
	return b.take(n)
}
