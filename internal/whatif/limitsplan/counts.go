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

type counts struct {
	calls      Counts
	start, end time.Time
	timeline   timeline

	total, deniedBefore, deniedNow []uint64 // in the buckets of timeline

	rules    map[*descriptors.Rule]*RuleReport // nil stands for no rule
	metRules bool                              // a descriptor met a rule

	keys  map[uint64]*keyCounts // by hash; at most maxKeys
	names map[uint64]KeyReport  // of the keys with a new denial, without their counts
	seed  maphash.Seed

	maxKeys int
	leftOut uint64 // descriptors with keys beyond maxKeys

	failed  uint64
	failure error // of the first failed call

	otherCauses [len(causes)]uint64 // number of calls that differ from the recorded answer, by index in causes
}

type keyCounts struct {
	Counts
	event cause // the first cause among the events of the key so far
}

func newCounts(maxKeys int) counts {
	c := counts{
		rules: map[*descriptors.Rule]*RuleReport{}, keys: map[uint64]*keyCounts{}, names: map[uint64]KeyReport{},
		seed: maphash.MakeSeed(), maxKeys: maxKeys,
	}
	c.total, c.deniedBefore, c.deniedNow = c.timeline.newSeries(), c.timeline.newSeries(), c.timeline.newSeries()
	return c
}

func (c *counts) add(recorded *Call, replayed *service.Call) {
	if replayed.Err != nil {
		c.failed++
		if c.failure == nil {
			c.failure = replayed.Err
		}
		return
	}
	if c.start.IsZero() {
		c.start = replayed.Start
	}
	c.end = replayed.Start
	bucket := c.timeline.bucket(replayed.Start)
	isDenied := replayed.Response.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT
	c.calls.add(recorded.Denied, isDenied)
	c.total[bucket]++
	if recorded.Denied {
		c.deniedBefore[bucket]++
	}
	if isDenied {
		c.deniedNow[bucket]++
	}
	next := 0 // decision
	event := noEvent
	for i, rule := range replayed.Rules {
		isOverLimit, inShadow, first := false, false, next
		for ; next < replayed.Decisions(); next++ {
			d := replayed.Decision(next)
			if d.Descriptor != i {
				break
			}
			isOverLimit = isOverLimit || !d.Result.Allowed && !d.Shadow
			inShadow = inShadow || !d.Result.Allowed && (d.Shadow || replayed.GlobalShadow)
		}
		// A descriptor in quota mode can be over its limit in a call that passes.
		before, now := recorded.overLimit[i] && recorded.Denied, isOverLimit && isDenied
		c.addDescriptor(rule, bucket, before, now, inShadow)
		if next > first {
			keyEvent := eventOf(recorded, rule, i)
			if key := c.addKey(rule, replayed.Decision(first).Key, replayed.Start, before, now); key != nil {
				key.event = min(key.event, keyEvent)
				keyEvent = key.event
			}
			event = min(event, keyEvent)
		}
	}
	if recorded.Denied != isDenied && differsUnderSameLimits(recorded, replayed) {
		c.otherCauses[c.causeOf(recorded, replayed, event)]++
	}
}

func (c *counts) addDescriptor(rule *descriptors.Rule, bucket int, before, now, inShadow bool) {
	r := c.rules[rule]
	if r == nil {
		r = &RuleReport{Rule: NoRule, Limits: "none", Timeline: c.timeline.newSeries()}
		if rule != nil {
			r.Rule, r.Limits, r.Shadow = rule.Path, limitsText(rule), rule.ShadowMode
			c.metRules = true
		}
		c.rules[rule] = r
	}
	r.add(before, now)
	if inShadow {
		r.DeniedInShadow++
	}
	if now && !before {
		r.Timeline[bucket]++
	}
}

// addKey counts a descriptor of a key. It returns nil if there are too many keys.
func (c *counts) addKey(rule *descriptors.Rule, key []byte, at time.Time, before, now bool) *keyCounts {
	hash := maphash.Bytes(c.seed, key)
	k := c.keys[hash]
	if k == nil {
		if len(c.keys) >= c.maxKeys {
			c.leftOut++
			return nil
		}
		k = &keyCounts{event: noEvent}
		c.keys[hash] = k
	}
	k.add(before, now)
	if now && !before && k.NewlyDenied == 1 {
		c.names[hash] = KeyReport{Rule: rule.Path, Key: string(key), FirstDenied: at}
	}
	return k
}

// report returns the Report, with at most maxKeys keys.
func (c *counts) report(maxKeys int) *Report {
	r := &Report{Start: c.start, End: c.end, Calls: c.calls, NewlyDeniedKeys: len(c.names), Rules: []RuleReport{}, Keys: []KeyReport{}}
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
	for hash, key := range c.names {
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
	if c.failure != nil {
		r.addNote(c.failed, "calls could not be replayed; the first error is: %v", c.failure)
	}
	r.addNote(c.leftOut, "descriptors have keys beyond the first %d; the table of keys leaves them out", c.maxKeys)
	return r
}

func limitsText(rule *descriptors.Rule) string {
	var words []string
	for _, l := range rule.Limits {
		word := "unlimited"
		if !l.Unlimited {
			word = l.String()
		}
		if l.Name != "" {
			word = fmt.Sprintf("%s (%s)", word, l.Name)
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}
