package service

import (
	"strconv"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
)

// The first letter of a key is o for over the limit or p for passing. The second is n
// for ordinary, q for quota mode, s for shadow mode and b for both modes.
const overallLimits = `
domain: d
descriptors:
  - {key: on, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: pn, rate_limit: {unit: second, requests_per_unit: 9}}
  - {key: oq, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: pq, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 9}}
  - {key: os, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: ob, shadow_mode: true, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: unlimited, rate_limit: {unlimited: true}}
  - {key: quota unlimited, quota_mode: true, rate_limit: {unlimited: true}}
  - {key: quota disabled, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 0, enabled: false}}
  - {key: quota without a limit, quota_mode: true}
  - {key: quota replaced, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 9, name: base}}
  - {key: oq replaces, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 0, replaces: [{name: base}]}}
`

func TestOverallCodeFollowsTheModesOfTheLimits(t *testing.T) {
	useQuotaMode := func(o *Options) { o.QuotaMode = true }
	useShadowMode := func(o *Options) { o.ShadowMode = true }
	for name, c := range map[string]struct {
		mode func(*Options)
		keys []string
		want rlsv3.RateLimitResponse_Code
	}{
		"all pass":                                                       {nil, []string{"pn", "pq"}, codeOK},
		"an ordinary limit is over":                                      {nil, []string{"pn", "on"}, codeOverLimit},
		"a shadow limit is over":                                         {nil, []string{"os"}, codeOK},
		"a quota limit is over, alone":                                   {nil, []string{"oq"}, codeOverLimit},
		"a quota limit is over, an ordinary one passes":                  {nil, []string{"oq", "pn"}, codeOverLimit},
		"one quota limit is over, another passes":                        {nil, []string{"oq", "pq"}, codeOK},
		"all quota limits are over":                                      {nil, []string{"oq", "oq"}, codeOverLimit},
		"a quota limit passes, an ordinary one is over":                  {nil, []string{"pq", "on"}, codeOverLimit},
		"a limit in quota and shadow mode is over":                       {nil, []string{"ob"}, codeOK},
		"a limit in both modes beside a quota limit that is over":        {nil, []string{"ob", "oq"}, codeOK},
		"unlimited beside a quota limit that is over":                    {nil, []string{"unlimited", "oq"}, codeOverLimit},
		"unlimited in quota mode beside a quota limit that is over":      {nil, []string{"quota unlimited", "oq"}, codeOK},
		"disabled in quota mode beside a quota limit that is over":       {nil, []string{"oq", "quota disabled"}, codeOK},
		"no limit in quota mode beside a quota limit that is over":       {nil, []string{"oq", "quota without a limit"}, codeOK},
		"no limit in quota mode beside an ordinary limit that is over":   {nil, []string{"on", "quota without a limit"}, codeOverLimit},
		"a replaced limit in quota mode beside the one that replaces it": {nil, []string{"quota replaced", "oq replaces"}, codeOverLimit},
		"only descriptors in quota mode without a limit":                 {nil, []string{"quota unlimited", "quota disabled", "quota without a limit"}, codeOK},

		"global quota: one of two limits is over":          {useQuotaMode, []string{"on", "pn"}, codeOK},
		"global quota: both limits are over":               {useQuotaMode, []string{"on", "on"}, codeOverLimit},
		"global quota: a descriptor without a rule passes": {useQuotaMode, []string{"on", "none"}, codeOK},
		"global quota: unlimited passes":                   {useQuotaMode, []string{"on", "unlimited"}, codeOK},
		"global quota: only unlimited":                     {useQuotaMode, []string{"unlimited"}, codeOK},
		"global shadow: an ordinary limit is over":         {useShadowMode, []string{"on", "pn"}, codeOK},
		"global shadow: a quota limit is over":             {useShadowMode, []string{"oq"}, codeOK},
		"global shadow: all pass":                          {useShadowMode, []string{"pn"}, codeOK},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, overallLimits)
			if c.mode != nil {
				c.mode(&f.svc.options)
			}
			var ds []*ratelimitv3.RateLimitDescriptor
			for _, k := range c.keys {
				ds = append(ds, desc(k+"=x"))
			}
			f.svc.options.Observers = []Observer{observerFunc(func(call *Call) {
				for i := range call.DecisionCount() {
					if d := call.Decision(i); d.DenialDeniesCall && !d.Result.Allowed {
						assert.Equal(t, codeOverLimit, call.Response.OverallCode, "the denied hit denies the call")
					}
				}
			})}
			resp := f.request(ds...)
			assert.Equal(t, c.want, resp.OverallCode)
			for i, st := range resp.Statuses {
				isOver := c.keys[i] == "on" || strings.HasPrefix(c.keys[i], "oq")
				assert.Equal(t, isOver, st.Code == codeOverLimit, "the status of %s doesn't depend on the mode", c.keys[i])
			}
		})
	}
}

func TestStatusInShadowModeHasTheLimitAndTheWait(t *testing.T) {
	f := newFixture(t, overallLimits)
	st := f.request(desc("os=x")).Statuses[0]
	assert.Equal(t, codeOK, st.Code)
	assert.Zero(t, st.LimitRemaining)
	assert.NotNil(t, st.CurrentLimit)
	assert.NotNil(t, st.DurationUntilReset)
}

func TestEnforceDeniesItsShareOfTheKeysOnly(t *testing.T) {
	f := newFixture(t, "domain: d\ndescriptors: [{key: k, enforce: 30, rate_limit: {unit: minute, requests_per_unit: 0}}]")
	const keys = 2000
	deniedCount := 0
	for i := range keys {
		resp := f.request(desc("k=" + strconv.Itoa(i)))
		secondResponse := f.request(desc("k=" + strconv.Itoa(i)))
		assert.Equal(t, resp.OverallCode, secondResponse.OverallCode, "the same key has the same answer")
		assert.Equal(t, resp.OverallCode, resp.Statuses[0].Code)
		assert.Zero(t, resp.Statuses[0].LimitRemaining, "keys that are left out are counted too")
		if resp.OverallCode == codeOverLimit {
			deniedCount++
		}
	}
	assert.InDelta(t, 0.3*keys, deniedCount, 0.04*keys)
}

func TestHeadersDescribeTheMostRestrictiveLimit(t *testing.T) {
	limits := `
domain: d
descriptors:
  - {key: five, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: three, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: other, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: zero, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: none, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: most, rate_limit: {unit: minute, requests_per_unit: 4294967295}}
  - {key: unlimited, rate_limit: {unlimited: true}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket}}
`
	for name, c := range map[string]struct {
		keys []string
		want []string // limit, remaining, reset; nil for none
	}{
		"the least remaining":                                       {[]string{"five", "three"}, []string{"3", "2", "23"}},
		"the first of equals":                                       {[]string{"other", "three"}, []string{"3", "2", "3563"}},
		"the last ordinary limit that is over":                      {[]string{"zero", "none", "three"}, []string{"0", "0", "23"}},
		"a quota limit that is over has the least remaining":        {[]string{"three", "quota"}, []string{"0", "0", "50363"}},
		"an ordinary limit that is over comes before a quota limit": {[]string{"quota", "none"}, []string{"0", "0", "23"}},
		"no limit at all":                                           {[]string{"absent", "unlimited"}, nil},
		"2^32-2 remaining":                                          {[]string{"most"}, []string{"4294967295", "4294967294", "23"}},
		"a fraction of a second is rounded up":                      {[]string{"bucket"}, []string{"10", "9", "1"}},
		"unlimited beside a limit":                                  {[]string{"unlimited", "five"}, []string{"5", "4", "23"}},
		"over the limit":                                            {[]string{"none"}, []string{"0", "0", "23"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, limits, func(o *Options) {
				o.Headers = &Headers{Limit: "X-Limit", Remaining: "X-Remaining", Reset: "X-Reset"}
			})
			var ds []*ratelimitv3.RateLimitDescriptor
			for _, k := range c.keys {
				ds = append(ds, desc(k+"=x"))
			}
			var got, names []string
			for _, h := range f.request(ds...).ResponseHeadersToAdd {
				names = append(names, h.Key)
				got = append(got, h.Value)
			}
			assert.Equal(t, c.want, got)
			if c.want != nil {
				assert.Equal(t, []string{"X-Limit", "X-Remaining", "X-Reset"}, names)
			}
		})
	}
	t.Run("a peek at a limit of 2^32-1 sends no headers", func(t *testing.T) {
		f := newFixture(t, limits, func(o *Options) { o.Headers = &Headers{} })
		assert.Empty(t, f.request(withHits(0, desc("most=x"))).ResponseHeadersToAdd)
	})
	t.Run("global shadow mode keeps the headers", func(t *testing.T) {
		f := newFixture(t, limits, func(o *Options) { o.Headers = &Headers{}; o.ShadowMode = true })
		assert.Equal(t, "0", f.request(desc("none=x")).ResponseHeadersToAdd[1].Value)
	})
}

func TestFirstOfEquallyRestrictiveLimitsIsReported(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - key: k
    rate_limits:
      - {unit: minute, requests_per_unit: 2, name: first}
      - {unit: minute, requests_per_unit: 2, name: second, scope: instance}
`)
	for _, want := range []rlsv3.RateLimitResponse_Code{codeOK, codeOK, codeOverLimit} {
		st := f.request(desc("k=v")).Statuses[0]
		assert.Equal(t, want, st.Code)
		assert.Equal(t, "first", st.CurrentLimit.Name)
	}
}

func TestDenialDeniesCallUnlessInShadowOrQuotaMode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		keys   []string
		want   []bool
	}{
		"ordinary":                   {nil, []string{"pn", "on"}, []bool{true, true}},
		"shadow mode":                {nil, []string{"os", "on"}, []bool{false, true}},
		"quota mode":                 {nil, []string{"oq", "pq", "on"}, []bool{false, false, true}},
		"shadow mode of all rules":   {func(o *Options) { o.ShadowMode = true }, []string{"on"}, []bool{false}},
		"quota mode of all requests": {func(o *Options) { o.QuotaMode = true }, []string{"on"}, []bool{false}},
		"all-or-none":                {func(o *Options) { o.AllOrNone = true }, []string{"on", "oq"}, []bool{true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []bool
			f := newFixture(t, overallLimits, func(o *Options) {
				o.Limiter = limiterFunc(func(hits []backend.Hit, _ []backend.Result) {
					for _, h := range hits {
						got = append(got, h.DenialDeniesCall)
					}
				})
			})
			if c.change != nil {
				c.change(&f.svc.options)
			}
			var ds []*ratelimitv3.RateLimitDescriptor
			for _, k := range c.keys {
				ds = append(ds, desc(k+"=x"))
			}
			f.request(ds...)
			assert.Equal(t, c.want, got)
		})
	}
}

// A Take of several requests has hits that another request can't deny.
func TestDenialOfOneRequestDoesNotDenyOtherRequests(t *testing.T) {
	f := newFixture(t, severalLimits, func(o *Options) {
		o.Limiter = limiterFunc(func(hits []backend.Hit, _ []backend.Result) {
			for _, h := range hits {
				assert.False(t, h.DenialDeniesCall)
			}
		})
	})
	f.answerAll([]*rlsv3.RateLimitRequest{newRequestFor("a=x"), newRequestFor("b=x")})
}
