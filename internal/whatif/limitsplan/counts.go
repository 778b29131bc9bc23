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

type replayCounts struct {
	calls      Counts
	start, end time.Time
	timeline   timeline

	totalSeries, deniedBeforeSeries, deniedNowSeries []uint64 // the numbers of calls in the buckets of timeline

	rules      map[*descriptors.Rule]*RuleReport // the key nil stands for no rule
	hasMetRule bool                              // reports whether a descriptor has met a rule

	keys            map[uint64]*Counts   // at most maxKeys; the key is a hash of the counter's key
	newlyDeniedKeys map[uint64]KeyReport // the reports of keys with a new denial, without counts; the key is the hash
	seed            maphash.Seed

	maxKeys              int
	uncountedDescriptors uint64 // the number of descriptors with keys beyond maxKeys

	failureCount uint64
	firstFailure error
}

func newReplayCounts(maxKeys int) replayCounts {
	result := replayCounts{
		rules: map[*descriptors.Rule]*RuleReport{}, keys: map[uint64]*Counts{}, newlyDeniedKeys: map[uint64]KeyReport{},
		seed: maphash.MakeSeed(), maxKeys: maxKeys,
	}
	result.totalSeries, result.deniedBeforeSeries, result.deniedNowSeries = result.timeline.newSeries(), result.timeline.newSeries(), result.timeline.newSeries()
	return result
}

func (c *replayCounts) add(recordedCall *Call, replayedCall *service.Call) {
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
	c.totalSeries[bucket]++
	if recordedCall.Denied {
		c.deniedBeforeSeries[bucket]++
	}
	if isDenied {
		c.deniedNowSeries[bucket]++
	}
	decisionIndex := 0
	for i, rule := range replayedCall.Rules {
		isOverLimit, isOverInShadow, firstDecision := false, false, decisionIndex
		for ; decisionIndex < replayedCall.DecisionCount(); decisionIndex++ {
			decision := replayedCall.Decision(decisionIndex)
			if decision.Descriptor != i {
				break
			}
			isOverLimit = isOverLimit || !decision.Result.Allowed && !decision.Shadow
			isOverInShadow = isOverInShadow || !decision.Result.Allowed && (decision.Shadow || replayedCall.GlobalShadow)
		}
		// A descriptor in quota mode can be over its limit although the call passes.
		wasDenied, isNowDenied := recordedCall.isOverLimit[i] && recordedCall.Denied, isOverLimit && isDenied
		c.addDescriptor(rule, bucket, wasDenied, isNowDenied, isOverInShadow)
		if decisionIndex > firstDecision {
			c.addKey(rule, replayedCall.Decision(firstDecision).Key, replayedCall.Start, wasDenied, isNowDenied)
		}
	}
}

func (c *replayCounts) addDescriptor(rule *descriptors.Rule, bucket int, wasDenied, isNowDenied, isOverInShadow bool) {
	ruleReport := c.rules[rule]
	if ruleReport == nil {
		ruleReport = &RuleReport{Rule: NoRule, Limits: "none", Timeline: c.timeline.newSeries()}
		if rule != nil {
			ruleReport.Rule, ruleReport.Limits, ruleReport.Shadow = rule.Path, limitsText(rule), rule.ShadowMode
			c.hasMetRule = true
		}
		c.rules[rule] = ruleReport
	}
	ruleReport.add(wasDenied, isNowDenied)
	if isOverInShadow {
		ruleReport.DeniedInShadow++
	}
	if isNowDenied && !wasDenied {
		ruleReport.Timeline[bucket]++
	}
}

// addKey counts a descriptor with this key, unless the key is new and there are maxKeys keys.
func (c *replayCounts) addKey(rule *descriptors.Rule, key []byte, callTime time.Time, wasDenied, isNowDenied bool) {
	hash := maphash.Bytes(c.seed, key)
	countsOfKey := c.keys[hash]
	if countsOfKey == nil {
		if len(c.keys) >= c.maxKeys {
			c.uncountedDescriptors++
			return
		}
		countsOfKey = &Counts{}
		c.keys[hash] = countsOfKey
	}
	countsOfKey.add(wasDenied, isNowDenied)
	if isNowDenied && !wasDenied && countsOfKey.NewlyDenied == 1 {
		c.newlyDeniedKeys[hash] = KeyReport{Rule: rule.Path, Key: string(key), FirstDenied: callTime}
	}
}

func (c *replayCounts) report(maxKeys int) *Report {
	report := &Report{Start: c.start, End: c.end, Calls: c.calls, NewlyDeniedKeys: len(c.newlyDeniedKeys), Rules: []RuleReport{}, Keys: []KeyReport{}}
	buckets := 0
	if c.calls.Total > 0 {
		buckets = c.timeline.bucket(c.end) + 1
	}
	report.Timeline = Timeline{
		Start: c.timeline.start, BucketSeconds: c.timeline.width.Seconds(),
		Total: c.totalSeries[:buckets], DeniedBefore: c.deniedBeforeSeries[:buckets], DeniedNow: c.deniedNowSeries[:buckets],
	}
	for _, rule := range c.rules {
		rule.Timeline = rule.Timeline[:buckets]
		report.Rules = append(report.Rules, *rule)
	}
	slices.SortFunc(report.Rules, func(a, b RuleReport) int {
		return cmp.Or(cmp.Compare(b.NewlyDenied, a.NewlyDenied), cmp.Compare(b.Total, a.Total), strings.Compare(a.Rule, b.Rule))
	})
	for hash, key := range c.newlyDeniedKeys {
		key.Counts = *c.keys[hash]
		report.Keys = append(report.Keys, key)
	}
	slices.SortFunc(report.Keys, func(a, b KeyReport) int {
		return cmp.Or(cmp.Compare(b.NewlyDenied, a.NewlyDenied), strings.Compare(a.Key, b.Key))
	})
	report.Keys = slices.Clip(report.Keys[:min(len(report.Keys), maxKeys)])
	if c.firstFailure != nil {
		report.addNote(c.failureCount, "calls could not be replayed; the first error is: %v", c.firstFailure)
	}
	report.addNote(c.uncountedDescriptors, "descriptors have keys beyond the first %d; the table of keys leaves them out", c.maxKeys)
	return report
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
