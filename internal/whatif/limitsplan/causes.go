package limitsplan

import (
	"fmt"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// Cause is a reason why a replay under the same limits can differ from the recorded answer.
type Cause string

// The causes. If a call has several possible causes, the first counts.
const (
	CauseFailed    Cause = "failed"
	CauseFallback  Cause = "fallback"
	CauseLease     Cause = "lease"
	CauseDenyCache Cause = "deny_cache"
	CauseStart     Cause = "start"
	CauseTime      Cause = "time"
)

// causes has the name and the description of each cause. The first four causes are events of a key.
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

// causeIndex is an index of causes.
type causeIndex uint8

const (
	failureEvent causeIndex = iota
	fallbackEvent
	leaseEvent
	denyCacheEvent
	unknownStart
	inexactTime

	noEvent = inexactTime // the cause of a key without events
)

// OtherCause is a cause and the number of calls with this cause.
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

// eventOf returns the first event of descriptor i of a recorded call, in the order of causes, or noEvent.
func eventOf(recordedCall *Call, rule *descriptors.Rule, i int) causeIndex {
	firstEvent := noEvent
	for _, record := range recordedCall.decisions {
		switch {
		case record.DescriptorIndex != recordedCall.indexes[i]:
		case record.Code == decisionlog.Failed:
			firstEvent = failureEvent
		case record.Degraded:
			firstEvent = min(firstEvent, fallbackEvent)
		case record.Source == backend.SourceDenyCache.String():
			firstEvent = min(firstEvent, denyCacheEvent)
		}
	}
	for _, l := range rule.Limits {
		if l.Limit != nil && l.MaxLeasePermits() > 0 {
			firstEvent = min(firstEvent, leaseEvent)
		}
	}
	return firstEvent
}

// differsUnderSameLimits reports whether the replayed call met the same limits as the recorded call, but a limit made
// another decision.
func differsUnderSameLimits(recordedCall *Call, replayedCall *service.Call) bool {
	if len(recordedCall.decisions) != replayedCall.DecisionCount() {
		return false
	}
	isDifferent := false
	for i := range recordedCall.decisions {
		record, decision := recordedCall.decisions[i], replayedCall.Decision(i)
		isSameRule := recordedCall.indexes[decision.Descriptor] == record.DescriptorIndex && record.Rule == decision.Rule.Path
		if !isSameRule || record.LimitName != decision.Limit.Name || record.Limit != decision.Limit.String() {
			return false
		}
		isDifferent = isDifferent || (record.Code == decisionlog.OverLimit) == decision.Result.Allowed
	}
	return isDifferent
}

// causeOf returns the first possible cause of a different answer. event is the first event of the keys of the call.
func (c *replayCounts) causeOf(recordedCall *Call, replayedCall *service.Call, event causeIndex) causeIndex {
	switch {
	case event != noEvent:
		return event
	case recordedCall.Denied && c.isInFirstWindow(replayedCall):
		return unknownStart
	}
	return inexactTime
}

// isInFirstWindow reports whether the window of a limit of the call can have begun before the log.
func (c *replayCounts) isInFirstWindow(replayedCall *service.Call) bool {
	for i := range replayedCall.DecisionCount() {
		l := replayedCall.Decision(i).Limit.Limit
		windows := int64(1)
		if l.Algorithm == limit.SlidingWindow {
			windows = 2 // the previous window counts too
		}
		if replayedCall.Start.Sub(c.start).Microseconds() < windows*l.Period() {
			return true
		}
	}
	return false
}
