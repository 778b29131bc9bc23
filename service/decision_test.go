package service

import (
	"math"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const tenPerMinute = `
domain: d
descriptors:
  - key: k
    rate_limit: {unit: minute, requests_per_unit: 10, name: ten}
`

func TestStatusOfACountedDescriptor(t *testing.T) {
	r := newRig(t, tenPerMinute)
	resp := r.ask(desc("k=v"))
	assert.Equal(t, ok, resp.OverallCode)
	st := resp.Statuses[0]
	assert.Equal(t, ok, st.Code)
	assert.Equal(t, uint32(10), st.CurrentLimit.RequestsPerUnit)
	assert.Equal(t, rlsv3.RateLimitResponse_RateLimit_MINUTE, st.CurrentLimit.Unit)
	assert.Equal(t, "ten", st.CurrentLimit.Name)
	assert.Nil(t, st.CurrentLimit.UnitMultiplier)
	assert.Equal(t, uint32(9), st.LimitRemaining)
	assert.Equal(t, 23*time.Second, st.DurationUntilReset.AsDuration(), "22.5 s are left, told in whole seconds")
	assert.Empty(t, resp.ResponseHeadersToAdd)
	assert.Nil(t, resp.DynamicMetadata)
}

func TestDurationUntilResetIsOneToAUnit(t *testing.T) {
	for at, want := range map[time.Duration]time.Duration{
		22_500 * time.Millisecond: time.Minute, // the next window's first moment
		22_499 * time.Millisecond: time.Second, // the last moment of this one
	} {
		r := newRig(t, tenPerMinute)
		r.now = start.Add(at)
		assert.Equal(t, want, r.ask(desc("k=v")).Statuses[0].DurationUntilReset.AsDuration(), at)
	}
}

// hit is one request of a sequence on one descriptor.
type hit struct {
	d         *ratelimitv3.RateLimitDescriptor
	addend    uint32 // of the request
	code      rlsv3.RateLimitResponse_Code
	remaining uint32
}

func TestHits(t *testing.T) {
	k := func() *ratelimitv3.RateLimitDescriptor { return desc("k=v") }
	for name, sequence := range map[string][]hit{
		"the incumbent's verified example, 7 1 1 3 2 on ten": {
			{d: k(), addend: 7, code: ok, remaining: 3},
			{d: k(), addend: 1, code: ok, remaining: 2},
			{d: k(), addend: 1, code: ok, remaining: 1},
			{d: k(), addend: 3, code: over},
			{d: k(), addend: 2, code: over},
		},
		"denied hits are charged: one oversized call exhausts the window": {
			{d: k(), addend: 15, code: over},
			{d: k(), addend: 1, code: over},
		},
		"an addend of 0 on the request means 1": {
			{d: k(), addend: 0, code: ok, remaining: 9},
		},
		"the descriptor's addend comes before the request's": {
			{d: hits(2, k()), addend: 9, code: ok, remaining: 8},
		},
		"0 on the descriptor peeks, and is fine at exactly the limit": {
			{d: hits(0, k()), code: ok, remaining: 10},
			{d: hits(10, k()), code: ok, remaining: 0},
			{d: hits(0, k()), code: ok, remaining: 0},
			{d: k(), code: over},
			{d: hits(0, k()), code: over},
		},
		"negative hits are given back, never beyond the limit": {
			{d: hits(4, k()), code: ok, remaining: 6},
			{d: back(3, k()), code: ok, remaining: 9},
			{d: back(3, k()), code: ok, remaining: 10},
			{d: k(), code: ok, remaining: 9},
		},
		"a give-back is OK while the limit is exceeded": {
			{d: hits(12, k()), code: over},
			{d: back(1, k()), code: ok, remaining: 0},
			{d: back(2, k()), code: ok, remaining: 1},
		},
		"the largest addend denies instead of decrementing": {
			{d: hits(math.MaxUint64, k()), code: over},
			{d: hits(1<<63, k()), code: over},
			{d: k(), code: over},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tenPerMinute)
			for i, h := range sequence {
				resp := r.send(&rlsv3.RateLimitRequest{Domain: "d", HitsAddend: h.addend, Descriptors: []*ratelimitv3.RateLimitDescriptor{h.d}})
				assert.Equal(t, h.code, resp.OverallCode, "request %d", i)
				assert.Equal(t, h.remaining, resp.Statuses[0].LimitRemaining, "request %d", i)
			}
		})
	}
}

func TestALimitOfZeroDeniesHitsAndAllowsPeeks(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - key: k
    rate_limit: {unit: second}
`)
	assert.Equal(t, ok, r.ask(hits(0, desc("k=v"))).OverallCode)
	assert.Equal(t, over, r.ask(desc("k=v")).OverallCode)
}

func TestTheSameDescriptorTwiceInARequestCountsTwice(t *testing.T) {
	r := newRig(t, tenPerMinute)
	resp := r.send(&rlsv3.RateLimitRequest{Domain: "d", HitsAddend: 6, Descriptors: repeat(2, desc("k=v"))})
	assert.Equal(t, []rlsv3.RateLimitResponse_Code{ok, over}, statusCodes(resp))
	assert.Equal(t, uint32(4), resp.Statuses[0].LimitRemaining)
}

func TestWhatIsNotLimitedIsPlainlyOK(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - key: parent
    rate_limit: {unit: second, requests_per_unit: 0}
    descriptors:
      - key: child
        rate_limit: {unit: second, requests_per_unit: 0}
      - key: allowed
  - key: off
    rate_limit: {unit: second, requests_per_unit: 0, enabled: false}
`)
	for name, d := range map[string]*ratelimitv3.RateLimitDescriptor{
		"no rule":                   desc("other=x"),
		"no entries":                desc(),
		"a rule without a limit":    desc("parent=x", "allowed=x"),
		"deeper than the rules":     desc("parent=x", "child=x", "more=x"),
		"a limit that is off":       desc("off=x"),
		"ten thousand entries":      desc(make([]string, 10_000)...),
		"a descriptor that is null": nil,
	} {
		t.Run(name, func(t *testing.T) {
			resp := r.ask(d)
			assert.Equal(t, ok, resp.OverallCode)
			st := resp.Statuses[0]
			assert.Equal(t, ok, st.Code)
			assert.Nil(t, st.CurrentLimit)
			assert.Zero(t, st.LimitRemaining)
			assert.Nil(t, st.DurationUntilReset)
		})
	}
	t.Run("an unknown domain", func(t *testing.T) {
		resp := r.send(&rlsv3.RateLimitRequest{Domain: "other", Descriptors: repeat(2, desc("parent=x"))})
		assert.Equal(t, []rlsv3.RateLimitResponse_Code{ok, ok}, statusCodes(resp))
	})
	t.Run("but a limit at just that depth counts", func(t *testing.T) {
		assert.Equal(t, over, r.ask(desc("parent=x")).OverallCode)
		assert.Equal(t, over, r.ask(desc("parent=x", "child=x")).OverallCode)
	})
}

func TestUnlimited(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - key: k
    rate_limit: {unlimited: true}
`)
	st := r.ask(desc("k=v")).Statuses[0]
	assert.Equal(t, ok, st.Code)
	assert.Nil(t, st.CurrentLimit)
	assert.Equal(t, uint32(math.MaxUint32), st.LimitRemaining)
	assert.Nil(t, st.DurationUntilReset)
}

func TestReplaces(t *testing.T) {
	limits := `
domain: d
descriptors:
  - key: a
    rate_limit: {unit: second, requests_per_unit: 0, name: a}
  - key: b
    rate_limit: {unit: second, requests_per_unit: 100, name: b, replaces: [{name: a}]}
  - key: c
    rate_limit: {unit: second, requests_per_unit: 100, name: c, replaces: [{name: b}]}
  - key: u
    rate_limit: {unlimited: true, name: u, replaces: [{name: a}]}
  - key: v
    rate_limit: {unit: second, requests_per_unit: 100, name: v, replaces: [{name: u}, {name: w}]}
  - key: w
    rate_limit: {unit: second, requests_per_unit: 100, name: w, replaces: [{name: v}]}
`
	for name, c := range map[string]struct {
		keys    []string
		counted []bool
	}{
		"alone, a limit counts":                      {[]string{"a"}, []bool{true}},
		"replaced, it doesn't":                       {[]string{"a", "b"}, []bool{false, true}},
		"in any order":                               {[]string{"b", "a"}, []bool{true, false}},
		"a chain drops all links":                    {[]string{"a", "b", "c"}, []bool{false, false, true}},
		"an unlimited one replaces":                  {[]string{"a", "u"}, []bool{false, false}},
		"two that replace each other vanish":         {[]string{"v", "w"}, []bool{false, false}},
		"an unlimited one is never itself replaced":  {[]string{"u", "v"}, []bool{false, true}},
		"what replaces it must be in the request":    {[]string{"a", "c"}, []bool{true, true}},
		"one that replaces what is not there counts": {[]string{"b"}, []bool{true}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, limits)
			var ds []*ratelimitv3.RateLimitDescriptor
			for _, k := range c.keys {
				ds = append(ds, desc(k+"=x"))
			}
			for i, st := range r.ask(ds...).Statuses {
				assert.Equal(t, c.counted[i], st.CurrentLimit != nil, c.keys[i])
				if c.keys[i] == "u" {
					assert.Equal(t, uint32(math.MaxUint32), st.LimitRemaining)
				}
			}
		})
	}
}

// A request of some megabytes has room for that many descriptors.
func TestReplacesTakesNoLongerThanItsDescriptors(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: a}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: a}]}}
`)
	begin := time.Now()
	resp := r.ask(append(repeat(300_000, desc("a=x")), desc("b=x"))...)
	assert.Less(t, time.Since(begin), 20*time.Second, "it would be minutes if each were compared with all")
	assert.Equal(t, ok, resp.OverallCode)
}

func TestOverride(t *testing.T) {
	override := func(n uint32, unit typev3.RateLimitUnit, multiplier ...uint32) *ratelimitv3.RateLimitDescriptor {
		d := desc("k=v")
		d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
		if len(multiplier) > 0 {
			d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier[0])
		}
		return d
	}
	t.Run("it is the limit, whatever the rules say", func(t *testing.T) {
		r := newRig(t, `{domain: d, descriptors: [{key: k, shadow_mode: true, rate_limit: {unlimited: true}}]}`)
		st := r.ask(override(3, typev3.RateLimitUnit_HOUR)).Statuses[0]
		assert.Equal(t, uint32(2), st.LimitRemaining)
		assert.Equal(t, rlsv3.RateLimitResponse_RateLimit_HOUR, st.CurrentLimit.Unit)
		assert.Equal(t, over, r.ask(hits(9, override(3, typev3.RateLimitUnit_HOUR))).OverallCode, "not in shadow mode")
	})
	t.Run("it shares the counter of a rule with its window", func(t *testing.T) {
		r := newRig(t, tenPerMinute)
		r.ask(hits(4, desc("k=v")))
		assert.Equal(t, uint32(15), r.ask(override(20, typev3.RateLimitUnit_MINUTE)).Statuses[0].LimitRemaining)
		assert.Equal(t, uint32(19), r.ask(override(20, typev3.RateLimitUnit_HOUR)).Statuses[0].LimitRemaining)
	})
	t.Run("unit_multiplier makes the window longer and is told", func(t *testing.T) {
		r := newRig(t, tenPerMinute)
		st := r.ask(override(5, typev3.RateLimitUnit_MINUTE, 15)).Statuses[0]
		assert.Equal(t, uint32(15), st.CurrentLimit.UnitMultiplier.GetValue())
		assert.Equal(t, 14*time.Minute+23*time.Second, st.DurationUntilReset.AsDuration())
	})
	t.Run("7 is a week", func(t *testing.T) {
		r := newRig(t, tenPerMinute)
		assert.Equal(t, rlsv3.RateLimitResponse_RateLimit_WEEK, r.ask(override(5, 7)).Statuses[0].CurrentLimit.Unit)
	})
	t.Run("an unknown domain stays unlimited", func(t *testing.T) {
		r := newRig(t, tenPerMinute)
		resp := r.send(&rlsv3.RateLimitRequest{Domain: "other", Descriptors: []*ratelimitv3.RateLimitDescriptor{override(0, typev3.RateLimitUnit_HOUR)}})
		assert.Equal(t, ok, resp.OverallCode)
		assert.Nil(t, resp.Statuses[0].CurrentLimit)
	})
	for name, d := range map[string]*ratelimitv3.RateLimitDescriptor{
		"no unit":                  override(5, typev3.RateLimitUnit_UNKNOWN),
		"a unit from the future":   override(5, 8),
		"a negative unit":          override(5, -1),
		"a multiplier of 0":        override(5, typev3.RateLimitUnit_HOUR, 0),
		"a window of a millennium": override(5, typev3.RateLimitUnit_YEAR, 1000),
	} {
		t.Run(name+" is INVALID_ARGUMENT", func(t *testing.T) {
			r := newRig(t, tenPerMinute)
			_, err := r.svc.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("k=v"), d}})
			require.Error(t, err)
			assert.Equal(t, "InvalidArgument", status.Code(err).String())
			assert.Contains(t, err.Error(), "descriptors[1]: limit: ")
		})
	}
}

func TestARuleWithSeveralLimits(t *testing.T) {
	limits := `
domain: d
descriptors:
  - key: k
    rate_limits:
      - {unit: second, requests_per_unit: 5, name: second}
      - {unit: day, requests_per_unit: 8, name: day}
`
	r := newRig(t, limits)
	st := r.ask(hits(2, desc("k=v"))).Statuses[0]
	assert.Equal(t, "second", st.CurrentLimit.Name, "the one with the least left")
	assert.Equal(t, uint32(3), st.LimitRemaining)

	st = r.ask(hits(4, desc("k=v"))).Statuses[0]
	assert.Equal(t, over, st.Code)
	assert.Equal(t, "second", st.CurrentLimit.Name, "the one that is over")

	r.now = r.now.Add(time.Second)
	st = r.ask(desc("k=v")).Statuses[0]
	assert.Equal(t, ok, st.Code)
	assert.Equal(t, "day", st.CurrentLimit.Name, "both were charged: 7 of 8")
	assert.Equal(t, uint32(1), st.LimitRemaining)

	st = r.ask(hits(7, desc("k=v"))).Statuses[0]
	assert.Equal(t, over, st.Code)
	assert.Equal(t, "day", st.CurrentLimit.Name, "of two that are over, the one that holds out longest")
}

func TestReplacingOneOfSeveralLimitsLeavesTheOthers(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - key: k
    rate_limits:
      - {unit: second, requests_per_unit: 0, name: strict}
      - {unit: day, requests_per_unit: 8, name: day}
  - key: vip
    rate_limit: {unit: second, requests_per_unit: 100, replaces: [{name: strict}]}
`)
	assert.Equal(t, over, r.ask(desc("k=v")).OverallCode)
	resp := r.ask(desc("k=v"), desc("vip=x"))
	assert.Equal(t, ok, resp.OverallCode)
	assert.Equal(t, "day", resp.Statuses[0].CurrentLimit.Name)
}

func TestTheOtherAlgorithmsTellTheTrueWait(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 4, algorithm: token_bucket}
  - key: log
    rate_limit: {unit: minute, unit_multiplier: 15, requests_per_unit: 1, algorithm: sliding_log}
`)
	r.ask(hits(4, desc("bucket=x")), desc("log=x"))
	r.now = r.now.Add(50 * time.Millisecond)
	resp := r.ask(hits(2, desc("bucket=x")), desc("log=x"))
	assert.Equal(t, []rlsv3.RateLimitResponse_Code{over, over}, statusCodes(resp))
	assert.Equal(t, 450*time.Millisecond, resp.Statuses[0].DurationUntilReset.AsDuration(), "exact below a second")
	assert.Equal(t, 15*time.Minute, resp.Statuses[1].DurationUntilReset.AsDuration(), "whole seconds from a second on")
	assert.Equal(t, uint32(15), resp.Statuses[1].CurrentLimit.UnitMultiplier.GetValue())

	never := r.ask(hits(5, desc("bucket=x"))).Statuses[0]
	assert.Equal(t, over, never.Code)
	assert.Equal(t, time.Second, never.DurationUntilReset.AsDuration(), "a window, where no wait would help")
}
