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

// counts counts the calls of a replay.
type counts struct {
	calls      Counts
	start, end time.Time
	timeline   timeline

	total, deniedBefore, deniedNow *series

	rules map[*descriptors.Rule]*ruleCounts // nil stands for no rule
	keys  map[uint64]*keyCounts             // by hash; at most maxKeys
	names map[uint64]keyName                // of the keys with a new denial
	seed  maphash.Seed

	maxKeys int
	leftOut uint64 // descriptors with keys beyond maxKeys

	failed  uint64
	failure error // of the first failed call

	otherCauses map[Cause]uint64 // number of calls that differ from the recorded answer
}

type ruleCounts struct {
	Counts
	deniedInShadow uint64
	newlyDenied    *series
}

// keyCounts are small, because there may be millions of keys.
type keyCounts struct {
	total, deniedBefore, deniedNow, newlyDenied, newlyAdmitted uint32
	events                                                     events
}

func (k *keyCounts) counts() Counts {
	return Counts{uint64(k.total), uint64(k.deniedBefore), uint64(k.deniedNow), uint64(k.newlyDenied), uint64(k.newlyAdmitted)}
}

type keyName struct {
	rule        *descriptors.Rule
	key         string
	firstDenied time.Time
}

func newCounts(maxKeys int) counts {
	c := counts{
		rules: map[*descriptors.Rule]*ruleCounts{}, keys: map[uint64]*keyCounts{}, names: map[uint64]keyName{},
		seed: maphash.MakeSeed(), maxKeys: maxKeys, otherCauses: map[Cause]uint64{},
	}
	c.total, c.deniedBefore, c.deniedNow = c.timeline.newSeries(), c.timeline.newSeries(), c.timeline.newSeries()
	return c
}

// add counts a recorded call and its replay.
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
	var histories events
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
			key := c.addKey(rule, replayed.Decision(first).Key, replayed.Start, before, now)
			histories |= key.addEvents(recorded, rule, i)
		}
	}
	if recorded.Denied != isDenied && differsUnderSameLimits(recorded, replayed) {
		c.otherCauses[c.causeOf(recorded, replayed, histories)]++
	}
}

func (c *counts) addDescriptor(rule *descriptors.Rule, bucket int, before, now, inShadow bool) {
	r := c.rules[rule]
	if r == nil {
		r = &ruleCounts{newlyDenied: c.timeline.newSeries()}
		c.rules[rule] = r
	}
	r.add(before, now)
	if inShadow {
		r.deniedInShadow++
	}
	if now && !before {
		r.newlyDenied[bucket]++
	}
}

// hasRule reports whether a descriptor met a rule.
func (c *counts) hasRule() bool {
	for rule := range c.rules {
		if rule != nil {
			return true
		}
	}
	return false
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
		k = new(keyCounts)
		c.keys[hash] = k
	}
	var n Counts
	n.add(before, now)
	k.total++
	k.deniedBefore += uint32(n.DeniedBefore)
	k.deniedNow += uint32(n.DeniedNow)
	k.newlyAdmitted += uint32(n.NewlyAdmitted)
	if n.NewlyDenied > 0 {
		if k.newlyDenied == 0 {
			c.names[hash] = keyName{rule, string(key), at}
		}
		k.newlyDenied++
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
	for rule, n := range c.rules {
		rr := RuleReport{Rule: NoRule, Limits: "none", DeniedInShadow: n.deniedInShadow, Counts: n.Counts, Timeline: n.newlyDenied[:buckets]}
		if rule != nil {
			rr.Rule, rr.Limits, rr.Shadow = rule.Path, limitsText(rule), rule.ShadowMode
		}
		r.Rules = append(r.Rules, rr)
	}
	slices.SortFunc(r.Rules, func(a, b RuleReport) int {
		return cmp.Or(cmp.Compare(b.NewlyDenied, a.NewlyDenied), cmp.Compare(b.Total, a.Total), strings.Compare(a.Rule, b.Rule))
	})
	for hash, name := range c.names {
		r.Keys = append(r.Keys, KeyReport{Rule: name.rule.Path, Key: name.key, Counts: c.keys[hash].counts(), FirstDenied: name.firstDenied})
	}
	slices.SortFunc(r.Keys, func(a, b KeyReport) int {
		return cmp.Or(cmp.Compare(b.NewlyDenied, a.NewlyDenied), strings.Compare(a.Key, b.Key))
	})
	r.Keys = slices.Clip(r.Keys[:min(len(r.Keys), maxKeys)])
	for _, cause := range causes {
		if n := c.otherCauses[cause]; n > 0 {
			r.OtherCauses = append(r.OtherCauses, OtherCause{cause, n})
		}
	}
	if c.failure != nil {
		r.addNote(c.failed, "calls could not be replayed; the first error is: %v", c.failure)
	}
	r.addNote(c.leftOut, "descriptors have keys beyond the first %d; the table of keys leaves them out", c.maxKeys)
	return r
}

// limitsText returns the limits of a rule in short.
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
