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

func TestStatusDescribesTheMatchedLimit(t *testing.T) {
	f := newFixture(t, tenPerMinute)
	resp := f.request(desc("k=v"))
	assert.Equal(t, codeOK, resp.OverallCode)
	st := resp.Statuses[0]
	assert.Equal(t, codeOK, st.Code)
	assert.Equal(t, uint32(10), st.CurrentLimit.RequestsPerUnit)
	assert.Equal(t, rlsv3.RateLimitResponse_RateLimit_MINUTE, st.CurrentLimit.Unit)
	assert.Equal(t, "ten", st.CurrentLimit.Name)
	assert.Nil(t, st.CurrentLimit.UnitMultiplier)
	assert.Equal(t, uint32(9), st.LimitRemaining)
	assert.Equal(t, 23*time.Second, st.DurationUntilReset.AsDuration(), "22.5 s, rounded up")
	assert.Empty(t, resp.ResponseHeadersToAdd)
	assert.Nil(t, resp.DynamicMetadata)
}

func TestDurationUntilResetIsBetweenOneSecondAndTheWindow(t *testing.T) {
	for elapsed, want := range map[time.Duration]time.Duration{
		22_500 * time.Millisecond: time.Minute, // first moment of the next window
		22_499 * time.Millisecond: time.Second, // last moment of this window
	} {
		f := newFixture(t, tenPerMinute)
		f.now = start.Add(elapsed)
		assert.Equal(t, want, f.request(desc("k=v")).Statuses[0].DurationUntilReset.AsDuration(), elapsed)
	}
}

// step is one request of a sequence on one descriptor.
type step struct {
	d         *ratelimitv3.RateLimitDescriptor
	addend    uint32 // the hits_addend of the request
	code      rlsv3.RateLimitResponse_Code
	remaining uint32
}

func TestHitsAddendSaysHowManyHitsAreCharged(t *testing.T) {
	k := func() *ratelimitv3.RateLimitDescriptor { return desc("k=v") }
	for name, sequence := range map[string][]step{
		"7, 1, 1, 3 and 2 hits on a limit of 10, as in envoyproxy/ratelimit": {
			{d: k(), addend: 7, code: codeOK, remaining: 3},
			{d: k(), addend: 1, code: codeOK, remaining: 2},
			{d: k(), addend: 1, code: codeOK, remaining: 1},
			{d: k(), addend: 3, code: codeOverLimit},
			{d: k(), addend: 2, code: codeOverLimit},
		},
		"a denied call of 15 hits is charged and exhausts the window": {
			{d: k(), addend: 15, code: codeOverLimit},
			{d: k(), addend: 1, code: codeOverLimit},
		},
		"an addend of 0 on the request means 1": {
			{d: k(), addend: 0, code: codeOK, remaining: 9},
		},
		"the descriptor's addend comes before the request's": {
			{d: withHits(2, k()), addend: 9, code: codeOK, remaining: 8},
		},
		"0 on the descriptor peeks, and passes at exactly the limit": {
			{d: withHits(0, k()), code: codeOK, remaining: 10},
			{d: withHits(10, k()), code: codeOK, remaining: 0},
			{d: withHits(0, k()), code: codeOK, remaining: 0},
			{d: k(), code: codeOverLimit},
			{d: withHits(0, k()), code: codeOverLimit},
		},
		"refunds never exceed the limit": {
			{d: withHits(4, k()), code: codeOK, remaining: 6},
			{d: withRefund(3, k()), code: codeOK, remaining: 9},
			{d: withRefund(3, k()), code: codeOK, remaining: 10},
			{d: k(), code: codeOK, remaining: 9},
		},
		"a refund is OK while the limit is exceeded": {
			{d: withHits(12, k()), code: codeOverLimit},
			{d: withRefund(1, k()), code: codeOK, remaining: 0},
			{d: withRefund(2, k()), code: codeOK, remaining: 1},
		},
		"the largest addend is denied and doesn't decrement": {
			{d: withHits(math.MaxUint64, k()), code: codeOverLimit},
			{d: withHits(1<<63, k()), code: codeOverLimit},
			{d: k(), code: codeOverLimit},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tenPerMinute)
			for i, step := range sequence {
				resp := f.send(&rlsv3.RateLimitRequest{Domain: "d", HitsAddend: step.addend, Descriptors: []*ratelimitv3.RateLimitDescriptor{step.d}})
				assert.Equal(t, step.code, resp.OverallCode, "request %d", i)
				assert.Equal(t, step.remaining, resp.Statuses[0].LimitRemaining, "request %d", i)
			}
		})
	}
}

func TestLimitOfZeroDeniesHitsAndAllowsPeeks(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - key: k
    rate_limit: {unit: second}
`)
	assert.Equal(t, codeOK, f.request(withHits(0, desc("k=v"))).OverallCode)
	assert.Equal(t, codeOverLimit, f.request(desc("k=v")).OverallCode)
}

func TestDescriptorTwiceInARequestCountsTwice(t *testing.T) {
	f := newFixture(t, tenPerMinute)
	resp := f.send(&rlsv3.RateLimitRequest{Domain: "d", HitsAddend: 6, Descriptors: repeat(2, desc("k=v"))})
	assert.Equal(t, []rlsv3.RateLimitResponse_Code{codeOK, codeOverLimit}, statusCodes(resp))
	assert.Equal(t, uint32(4), resp.Statuses[0].LimitRemaining)
}

func TestDescriptorsWithoutALimitAreOK(t *testing.T) {
	f := newFixture(t, `
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
		"no rule":                desc("other=x"),
		"no entries":             desc(),
		"a rule without a limit": desc("parent=x", "allowed=x"),
		"deeper than the rules":  desc("parent=x", "child=x", "more=x"),
		"a limit that is off":    desc("off=x"),
		"ten thousand entries":   desc(make([]string, 10_000)...),
		"a null descriptor":      nil,
	} {
		t.Run(name, func(t *testing.T) {
			resp := f.request(d)
			assert.Equal(t, codeOK, resp.OverallCode)
			st := resp.Statuses[0]
			assert.Equal(t, codeOK, st.Code)
			assert.Nil(t, st.CurrentLimit)
			assert.Zero(t, st.LimitRemaining)
			assert.Nil(t, st.DurationUntilReset)
		})
	}
	t.Run("an unknown domain", func(t *testing.T) {
		resp := f.send(&rlsv3.RateLimitRequest{Domain: "other", Descriptors: repeat(2, desc("parent=x"))})
		assert.Equal(t, []rlsv3.RateLimitResponse_Code{codeOK, codeOK}, statusCodes(resp))
	})
	t.Run("a limit at exactly that depth counts", func(t *testing.T) {
		assert.Equal(t, codeOverLimit, f.request(desc("parent=x")).OverallCode)
		assert.Equal(t, codeOverLimit, f.request(desc("parent=x", "child=x")).OverallCode)
	})
}

func TestUnlimitedHasNoCurrentLimit(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - key: k
    rate_limit: {unlimited: true}
`)
	st := f.request(desc("k=v")).Statuses[0]
	assert.Equal(t, codeOK, st.Code)
	assert.Nil(t, st.CurrentLimit)
	assert.Equal(t, uint32(math.MaxUint32), st.LimitRemaining)
	assert.Nil(t, st.DurationUntilReset)
}

func TestReplacedLimitsAreNotCounted(t *testing.T) {
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
		keys      []string
		isCounted []bool
	}{
		"a limit alone is counted":                         {[]string{"a"}, []bool{true}},
		"a replaced limit is not counted":                  {[]string{"a", "b"}, []bool{false, true}},
		"the order of descriptors doesn't matter":          {[]string{"b", "a"}, []bool{true, false}},
		"a chain replaces all but the last":                {[]string{"a", "b", "c"}, []bool{false, false, true}},
		"an unlimited limit replaces":                      {[]string{"a", "u"}, []bool{false, false}},
		"limits that replace each other are not counted":   {[]string{"v", "w"}, []bool{false, false}},
		"an unlimited limit is never replaced":             {[]string{"u", "v"}, []bool{false, true}},
		"the replacing limit must be in the request":       {[]string{"a", "c"}, []bool{true, true}},
		"a limit that replaces an absent limit is counted": {[]string{"b"}, []bool{true}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, limits)
			var ds []*ratelimitv3.RateLimitDescriptor
			for _, k := range c.keys {
				ds = append(ds, desc(k+"=x"))
			}
			for i, st := range f.request(ds...).Statuses {
				assert.Equal(t, c.isCounted[i], st.CurrentLimit != nil, c.keys[i])
				if c.keys[i] == "u" {
					assert.Equal(t, uint32(math.MaxUint32), st.LimitRemaining)
				}
			}
		})
	}
}

// A request of some megabytes has so many descriptors.
func TestReplacesTakesLinearTime(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: a}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: a}]}}
`)
	start := time.Now()
	resp := f.request(append(repeat(300_000, desc("a=x")), desc("b=x"))...)
	assert.Less(t, time.Since(start), time.Minute, "comparing all pairs takes minutes")
	assert.Equal(t, codeOK, resp.OverallCode)
}

func TestRequestOverrideReplacesTheLimitOfTheRules(t *testing.T) {
	override := func(n uint32, unit typev3.RateLimitUnit, multiplier ...uint32) *ratelimitv3.RateLimitDescriptor {
		d := desc("k=v")
		d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
		if len(multiplier) > 0 {
			d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier[0])
		}
		return d
	}
	t.Run("it replaces the limit of the rules", func(t *testing.T) {
		f := newFixture(t, `{domain: d, descriptors: [{key: k, shadow_mode: true, rate_limit: {unlimited: true}}]}`)
		st := f.request(override(3, typev3.RateLimitUnit_HOUR)).Statuses[0]
		assert.Equal(t, uint32(2), st.LimitRemaining)
		assert.Equal(t, rlsv3.RateLimitResponse_RateLimit_HOUR, st.CurrentLimit.Unit)
		assert.Equal(t, codeOverLimit, f.request(withHits(9, override(3, typev3.RateLimitUnit_HOUR))).OverallCode, "not in shadow mode")
	})
	t.Run("it shares the counter of a rule with the same window", func(t *testing.T) {
		f := newFixture(t, tenPerMinute)
		f.request(withHits(4, desc("k=v")))
		assert.Equal(t, uint32(15), f.request(override(20, typev3.RateLimitUnit_MINUTE)).Statuses[0].LimitRemaining)
		assert.Equal(t, uint32(19), f.request(override(20, typev3.RateLimitUnit_HOUR)).Statuses[0].LimitRemaining)
	})
	t.Run("unit_multiplier multiplies the window and is in the response", func(t *testing.T) {
		f := newFixture(t, tenPerMinute)
		st := f.request(override(5, typev3.RateLimitUnit_MINUTE, 15)).Statuses[0]
		assert.Equal(t, uint32(15), st.CurrentLimit.UnitMultiplier.GetValue())
		assert.Equal(t, 14*time.Minute+23*time.Second, st.DurationUntilReset.AsDuration())
	})
	t.Run("unit 7 is a week", func(t *testing.T) {
		f := newFixture(t, tenPerMinute)
		assert.Equal(t, rlsv3.RateLimitResponse_RateLimit_WEEK, f.request(override(5, 7)).Statuses[0].CurrentLimit.Unit)
	})
	t.Run("an unknown domain stays unlimited", func(t *testing.T) {
		f := newFixture(t, tenPerMinute)
		resp := f.send(&rlsv3.RateLimitRequest{Domain: "other", Descriptors: []*ratelimitv3.RateLimitDescriptor{override(0, typev3.RateLimitUnit_HOUR)}})
		assert.Equal(t, codeOK, resp.OverallCode)
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
			f := newFixture(t, tenPerMinute)
			_, err := f.svc.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("k=v"), d}})
			require.Error(t, err)
			assert.Equal(t, "InvalidArgument", status.Code(err).String())
			assert.Contains(t, err.Error(), "descriptors[1]: limit: ")
		})
	}
}

func TestStatusDescribesTheMostRestrictiveLimit(t *testing.T) {
	limits := `
domain: d
descriptors:
  - key: k
    rate_limits:
      - {unit: second, requests_per_unit: 5, name: second}
      - {unit: day, requests_per_unit: 8, name: day}
`
	f := newFixture(t, limits)
	st := f.request(withHits(2, desc("k=v"))).Statuses[0]
	assert.Equal(t, "second", st.CurrentLimit.Name, "the limit with the least remaining")
	assert.Equal(t, uint32(3), st.LimitRemaining)

	st = f.request(withHits(4, desc("k=v"))).Statuses[0]
	assert.Equal(t, codeOverLimit, st.Code)
	assert.Equal(t, "second", st.CurrentLimit.Name, "the limit that is exceeded")

	f.now = f.now.Add(time.Second)
	st = f.request(desc("k=v")).Statuses[0]
	assert.Equal(t, codeOK, st.Code)
	assert.Equal(t, "day", st.CurrentLimit.Name, "both limits were charged; 7 of 8 are spent")
	assert.Equal(t, uint32(1), st.LimitRemaining)

	st = f.request(withHits(7, desc("k=v"))).Statuses[0]
	assert.Equal(t, codeOverLimit, st.Code)
	assert.Equal(t, "second", st.CurrentLimit.Name, "7 hits never pass a limit of 5")
	assert.Equal(t, 50362*time.Second, st.DurationUntilReset.AsDuration(), "the wait for the day")

	f.now = f.now.Add(time.Second)
	st = f.request(withHits(5, desc("k=v"))).Statuses[0]
	assert.Equal(t, codeOverLimit, st.Code)
	assert.Equal(t, "day", st.CurrentLimit.Name, "the exceeded limit with the longest wait")
}

func TestReplacingOneLimitOfARuleKeepsItsOtherLimits(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - key: k
    rate_limits:
      - {unit: second, requests_per_unit: 0, name: strict}
      - {unit: day, requests_per_unit: 8, name: day}
  - key: vip
    rate_limit: {unit: second, requests_per_unit: 100, replaces: [{name: strict}]}
`)
	assert.Equal(t, codeOverLimit, f.request(desc("k=v")).OverallCode)
	resp := f.request(desc("k=v"), desc("vip=x"))
	assert.Equal(t, codeOK, resp.OverallCode)
	assert.Equal(t, "day", resp.Statuses[0].CurrentLimit.Name)
}

func TestWaitsOfOtherAlgorithmsAreExactBelowASecond(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 4, algorithm: token_bucket}
  - key: log
    rate_limit: {unit: minute, unit_multiplier: 15, requests_per_unit: 1, algorithm: sliding_log}
`)
	f.request(withHits(4, desc("bucket=x")), desc("log=x"))
	f.now = f.now.Add(50 * time.Millisecond)
	resp := f.request(withHits(2, desc("bucket=x")), desc("log=x"))
	assert.Equal(t, []rlsv3.RateLimitResponse_Code{codeOverLimit, codeOverLimit}, statusCodes(resp))
	assert.Equal(t, 450*time.Millisecond, resp.Statuses[0].DurationUntilReset.AsDuration(), "the wait is exact")
	assert.Equal(t, 15*time.Minute, resp.Statuses[1].DurationUntilReset.AsDuration(), "the wait has whole seconds")
	assert.Equal(t, uint32(15), resp.Statuses[1].CurrentLimit.UnitMultiplier.GetValue())

	neverStatus := f.request(withHits(5, desc("bucket=x"))).Statuses[0]
	assert.Equal(t, codeOverLimit, neverStatus.Code)
	assert.Equal(t, time.Second, neverStatus.DurationUntilReset.AsDuration(), "a window, because more hits than the capacity never pass")
}

func TestDecisionSaysWhetherDeniedHitsAreCharged(t *testing.T) {
	const limits = `
domain: d
descriptors:
  - {key: charges, max_hits: 3, rate_limit: {unit: hour, requests_per_unit: 5, charge_denied: true}}
  - {key: shadow, max_hits: 3, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5, charge_denied: true}}
  - {key: free, rate_limit: {unit: hour, requests_per_unit: 5, charge_denied: false}}
`
	for name, c := range map[string]struct {
		allOrNone bool
		ds        []*ratelimitv3.RateLimitDescriptor
		want      []bool
	}{
		"as the limits say":                 {false, []*ratelimitv3.RateLimitDescriptor{desc("charges=x"), desc("free=x")}, []bool{true, false}},
		"not in a group":                    {true, []*ratelimitv3.RateLimitDescriptor{desc("charges=x"), desc("free=x")}, []bool{false, false}},
		"not in a call above max_hits":      {false, []*ratelimitv3.RateLimitDescriptor{desc("charges=y"), withHits(4, desc("charges=x"))}, []bool{false, false}},
		"not above max_hits in shadow":      {false, []*ratelimitv3.RateLimitDescriptor{desc("charges=x"), withHits(4, desc("shadow=x"))}, []bool{true, false}},
		"in shadow mode beside all or none": {true, []*ratelimitv3.RateLimitDescriptor{desc("charges=x"), desc("shadow=x")}, []bool{false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []bool
			observer := callObserver(func(c *Call) {
				for i := range c.DecisionCount() {
					got = append(got, c.Decision(i).ChargesDenied)
				}
			})
			newFixture(t, limits, func(o *Options) { o.AllOrNone, o.Observers = c.allOrNone, []Observer{observer} }).request(c.ds...)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestDescriptorDecisionBelongsToItsDescriptor(t *testing.T) {
	var got []string
	observer := callObserver(func(c *Call) {
		for i := range c.Request.Descriptors {
			if d, ok := c.DescriptorDecision(i); ok {
				got = append(got, d.Rule.Path)
			} else {
				got = append(got, "nothing")
			}
		}
	})
	f := newFixture(t, acquireLimits, func(o *Options) { o.Observers = []Observer{observer} })
	f.request(desc("both=x"), desc("unknown=x"), desc("minute=x"))
	assert.Equal(t, []string{"d > both", "nothing", "d > minute"}, got)
}

func TestGlobalShadowIsADenialThatPasses(t *testing.T) {
	for _, isShadow := range []bool{false, true} {
		var got []bool
		observer := callObserver(func(c *Call) { got = append(got, c.GlobalShadow) })
		f := newFixture(t, acquireLimits, func(o *Options) { o.ShadowMode, o.Observers = isShadow, []Observer{observer} })
		f.request(withHits(10, desc("minute=x")))
		f.request(desc("minute=x"))
		assert.Equal(t, []bool{false, isShadow}, got)
	}
}
