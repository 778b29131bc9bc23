package limitsplan

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/service"
)

// counts counts the calls of a replay for the report.
type counts struct {
	calls      Counts
	start, end time.Time
	timeline   timeline

	total, deniedBefore, deniedNow []uint64 // the numbers of calls in the buckets of timeline

	rules      map[*descriptors.Rule]*RuleReport // the key nil stands for no rule
	hasMetRule bool                              // reports whether a descriptor has met a rule

	keys            map[uint64]*keyCounts // at most maxKeys; the key is a hash of the counter's key
	newlyDeniedKeys map[uint64]KeyReport  // the reports of keys with a new denial, without counts; the key is the hash
	seed            maphash.Seed

	maxKeys              int
	uncountedDescriptors uint64 // the number of descriptors with keys beyond maxKeys

	failureCount uint64
	firstFailure error

	otherCauses [len(causes)]uint64 // the number of different answers with each cause
}

type keyCounts struct {
	Counts
	event causeIndex // the first event of the key, in the order of causes
}

func newCounts(maxKeys int) counts {
	c := counts{
		rules: map[*descriptors.Rule]*RuleReport{}, keys: map[uint64]*keyCounts{}, newlyDeniedKeys: map[uint64]KeyReport{},
		seed: maphash.MakeSeed(), maxKeys: maxKeys,
	}
	c.total, c.deniedBefore, c.deniedNow = c.timeline.newSeries(), c.timeline.newSeries(), c.timeline.newSeries()
	return c
}

// add counts a recorded call and its replay.
func (c *counts) add(recordedCall *Call, replayedCall *service.Call) {
	if replayedCall.Err != nil {
		c.failureCount++
		if c.firstFailure == nil {
			c.firstFailure = replayedCall.Err
		}
		return
	}
	if c.start.IsZero() {
		c.start = replayedCall.Start
	}
	c.end = replayedCall.Start
	bucket := c.timeline.bucket(replayedCall.Start)
	isDenied := replayedCall.Response.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT
	c.calls.add(recordedCall.Denied, isDenied)
	c.total[bucket]++
	if recordedCall.Denied {
		c.deniedBefore[bucket]++
	}
	if isDenied {
		c.deniedNow[bucket]++
	}
	decisionIndex := 0
	event := noEvent
	for i, rule := range replayedCall.Rules {
		isOverLimit, isOverInShadow, firstDecision := false, false, decisionIndex
		for ; decisionIndex < replayedCall.DecisionCount(); decisionIndex++ {
			d := replayedCall.Decision(decisionIndex)
			if d.Descriptor != i {
				break
			}
			isOverLimit = isOverLimit || !d.Result.Allowed && !d.Shadow
			isOverInShadow = isOverInShadow || !d.Result.Allowed && (d.Shadow || replayedCall.GlobalShadow)
		}
		// A descriptor in quota mode can be over its limit although the call passes.
		wasDenied, isNowDenied := recordedCall.isOverLimit[i] && recordedCall.Denied, isOverLimit && isDenied
		c.addDescriptor(rule, bucket, wasDenied, isNowDenied, isOverInShadow)
		if decisionIndex > firstDecision {
			keyEvent := eventOf(recordedCall, rule, i)
			if key := c.addKey(rule, replayedCall.Decision(firstDecision).Key, replayedCall.Start, wasDenied, isNowDenied); key != nil {
				key.event = min(key.event, keyEvent)
				keyEvent = key.event
			}
			event = min(event, keyEvent)
		}
	}
	if recordedCall.Denied != isDenied && differsUnderSameLimits(recordedCall, replayedCall) {
		c.otherCauses[c.causeOf(recordedCall, replayedCall, event)]++
	}
}

func (c *counts) addDescriptor(rule *descriptors.Rule, bucket int, wasDenied, isNowDenied, isOverInShadow bool) {
	r := c.rules[rule]
	if r == nil {
		r = &RuleReport{Rule: NoRule, Limits: "none", Timeline: c.timeline.newSeries()}
		if rule != nil {
			r.Rule, r.Limits, r.Shadow = rule.Path, limitsText(rule), rule.ShadowMode
			c.hasMetRule = true
		}
		c.rules[rule] = r
	}
	r.add(wasDenied, isNowDenied)
	if isOverInShadow {
		r.DeniedInShadow++
	}
	if isNowDenied && !wasDenied {
		r.Timeline[bucket]++
	}
}

// addKey counts a descriptor with this key. It returns nil if the key is new and there are maxKeys keys.
func (c *counts) addKey(rule *descriptors.Rule, key []byte, callTime time.Time, wasDenied, isNowDenied bool) *keyCounts {
	hash := maphash.Bytes(c.seed, key)
	k := c.keys[hash]
	if k == nil {
		if len(c.keys) >= c.maxKeys {
			c.uncountedDescriptors++
			return nil
		}
		k = &keyCounts{event: noEvent}
		c.keys[hash] = k
	}
	k.add(wasDenied, isNowDenied)
	if isNowDenied && !wasDenied && k.NewlyDenied == 1 {
		c.newlyDeniedKeys[hash] = KeyReport{Rule: rule.Path, Key: string(key), FirstDenied: callTime}
	}
	return k
}

// report returns the Report, with at most maxKeys keys.
func (c *counts) report(maxKeys int) *Report {
	r := &Report{Start: c.start, End: c.end, Calls: c.calls, NewlyDeniedKeys: len(c.newlyDeniedKeys), Rules: []RuleReport{}, Keys: []KeyReport{}}
	buckets := 0
	if c.calls.Total > 0 {
		buckets = c.timeline.bucket(c.end) + 1
	}
	r.Timeline = Timeline{
		Start: c.timeline.start, BucketSeconds: c.timeline.width.Seconds(),
		Total: c.total[:buckets], DeniedBefore: c.deniedBefore[:buckets], DeniedNow: c.deniedNow[:buckets],
	}
	for _, rule := range c.rules {
		rule.Timeline = rule.Timeline[:buckets]
		r.Rules = append(r.Rules, *rule)
	}
	slices.SortFunc(r.Rules, func(a, b RuleReport) int {
		return cmp.Or(cmp.Compare(b.NewlyDenied, a.NewlyDenied), cmp.Compare(b.Total, a.Total), strings.Compare(a.Rule, b.Rule))
	})
	for hash, key := range c.newlyDeniedKeys {
		key.Counts = c.keys[hash].Counts
		r.Keys = append(r.Keys, key)
	}
	slices.SortFunc(r.Keys, func(a, b KeyReport) int {
		return cmp.Or(cmp.Compare(b.NewlyDenied, a.NewlyDenied), strings.Compare(a.Key, b.Key))
	})
	r.Keys = slices.Clip(r.Keys[:min(len(r.Keys), maxKeys)])
	for i, calls := range c.otherCauses {
		if calls > 0 {
			r.OtherCauses = append(r.OtherCauses, OtherCause{causes[i].name, calls})
		}
	}
	if c.firstFailure != nil {
		r.addNote(c.failureCount, "calls could not be replayed; the first error is: %v", c.firstFailure)
	}
	r.addNote(c.uncountedDescriptors, "descriptors have keys beyond the first %d; the table of keys leaves them out", c.maxKeys)
	return r
}

func limitsText(rule *descriptors.Rule) string {
	var texts []string
	for _, l := range rule.Limits {
		text := "unlimited"
		if !l.Unlimited {
			text = l.String()
		}
		if l.Name != "" {
			text = fmt.Sprintf("%s (%s)", text, l.Name)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
