package limitsplan

import (
	"fmt"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// Cause is why the replay of a call can differ from the recorded answer under the same limits.
type Cause string

// The causes. If several are possible, the first of them counts.
const (
	CauseFailed    Cause = "failed"
	CauseFallback  Cause = "fallback"
	CauseLease     Cause = "lease"
	CauseDenyCache Cause = "deny_cache"
	CauseStart     Cause = "start"
	CauseTime      Cause = "time"
)

// causes are the causes with their descriptions. The first four are events of a key.
var causes = [...]struct {
	name Cause
	text string
}{
	{CauseFailed, "an earlier call of the key had no answer, and the log does not say what it charged"},
	{CauseFallback, "a replica decided about the key without Redis"},
	{CauseLease, "replicas held permits of the key (lease)"},
	{CauseDenyCache, "the deny cache of a replica denied the key, and knows no refund through another replica"},
	{CauseStart, "the window began before the log, and the replay starts with empty counters"},
	{CauseTime, "the log has the time at which a call came; Redis decides a little later, and can decide calls in another order"},
}

// cause is an index in causes.
type cause uint8

const (
	hadFailure cause = iota
	hadFallback
	hadLease
	hadDenyCache
	causeStart
	causeTime

	noEvent = causeTime // of a key without events
)

// OtherCause is the number of calls whose replay may differ from the recorded answer for this cause.
type OtherCause struct {
	Cause Cause  `json:"cause"`
	Calls uint64 `json:"calls"`
}

// String returns the number and the cause in words.
func (o OtherCause) String() string {
	for _, c := range causes {
		if c.name == o.Cause {
			return fmt.Sprintf("%d: %s", o.Calls, c.text)
		}
	}
	return ""
}

// eventOf returns the first cause among the events of descriptor i of a recorded call, or noEvent.
func eventOf(recorded *Call, rule *descriptors.Rule, i int) cause {
	first := noEvent
	for _, d := range recorded.decisions {
		switch {
		case d.DescriptorIndex != recorded.places[i]:
		case d.Code == decisionlog.Failed:
			first = hadFailure
		case d.Degraded:
			first = min(first, hadFallback)
		case d.Source == backend.SourceDenyCache.String():
			first = min(first, hadDenyCache)
		}
	}
	for _, l := range rule.Limits {
		if l.Limit != nil && l.LeasePermits() > 0 {
			first = min(first, hadLease)
		}
	}
	return first
}

// differsUnderSameLimits reports whether a limit that the call met when it was recorded has decided differently.
func differsUnderSameLimits(recorded *Call, replayed *service.Call) bool {
	if len(recorded.decisions) != replayed.Decisions() {
		return false
	}
	differs := false
	for i := range recorded.decisions {
		record, decision := recorded.decisions[i], replayed.Decision(i)
		if recorded.places[decision.Descriptor] != record.DescriptorIndex || record.Rule != decision.Rule.Path ||
			record.LimitName != decision.Limit.Name || record.Limit != decision.Limit.String() {
			return false
		}
		differs = differs || (record.Code == decisionlog.OverLimit) == decision.Result.Allowed
	}
	return differs
}

// causeOf returns the first possible cause why a call differs. event is the first one among the events of its keys.
func (c *counts) causeOf(recorded *Call, replayed *service.Call, event cause) cause {
	switch {
	case event != noEvent:
		return event
	case recorded.Denied && c.isInFirstWindow(replayed):
		return causeStart
	}
	return causeTime
}

// isInFirstWindow reports whether the window of a limit of the call can have begun before the log.
func (c *counts) isInFirstWindow(replayed *service.Call) bool {
	for i := range replayed.Decisions() {
		l := replayed.Decision(i).Limit.Limit
		windows := int64(1)
		if l.Algorithm == limit.SlidingWindow {
			windows = 2 // the window before counts too
		}
		if replayed.Start.Sub(c.start).Microseconds() < windows*l.Period() {
			return true
		}
	}
	return false
}
