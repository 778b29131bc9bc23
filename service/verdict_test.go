package service

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
)

// Keys here start with what they are: o over, p passing; then n ordinary,
// q quota, s shadow, b both quota and shadow.
const verdictLimits = `
domain: d
descriptors:
  - {key: on, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: pn, rate_limit: {unit: second, requests_per_unit: 9}}
  - {key: oq, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: pq, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 9}}
  - {key: os, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: ob, shadow_mode: true, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: unlimited, rate_limit: {unlimited: true}}
`

func TestOverallCode(t *testing.T) {
	global := func(o *Options) { o.QuotaMode = true }
	shadow := func(o *Options) { o.ShadowMode = true }
	for name, c := range map[string]struct {
		mode func(*Options)
		keys []string
		want rlsv3.RateLimitResponse_Code
	}{
		"all pass":                             {nil, []string{"pn", "pq"}, ok},
		"an ordinary one fails":                {nil, []string{"pn", "on"}, over},
		"a shadow one fails":                   {nil, []string{"os"}, ok},
		"a quota one fails alone":              {nil, []string{"oq"}, over},
		"a quota one fails beside ordinary":    {nil, []string{"oq", "pn"}, over},
		"a quota one fails, another passes":    {nil, []string{"oq", "pq"}, ok},
		"all quota ones fail":                  {nil, []string{"oq", "oq"}, over},
		"quota passes, ordinary fails":         {nil, []string{"pq", "on"}, over},
		"quota and shadow never fails":         {nil, []string{"ob"}, ok},
		"quota and shadow beside failed quota": {nil, []string{"ob", "oq"}, ok},
		"unlimited beside failed quota":        {nil, []string{"unlimited", "oq"}, over},

		"global quota: one of two ordinary fails":     {global, []string{"on", "pn"}, ok},
		"global quota: both fail":                     {global, []string{"on", "on"}, over},
		"global quota: an unmatched one never fails":  {global, []string{"on", "none"}, ok},
		"global quota: an unlimited one is left out":  {global, []string{"on", "unlimited"}, over},
		"global quota: nothing but unlimited":         {global, []string{"unlimited"}, ok},
		"global shadow: what would be over is OK":     {shadow, []string{"on", "pn"}, ok},
		"global shadow: also where quota would be":    {shadow, []string{"oq"}, ok},
		"global shadow: what is OK is OK all the way": {shadow, []string{"pn"}, ok},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, verdictLimits)
			if c.mode != nil {
				c.mode(&r.svc.o)
			}
			var ds []*ratelimitv3.RateLimitDescriptor
			for _, k := range c.keys {
				ds = append(ds, desc(k+"=x"))
			}
			resp := r.ask(ds...)
			assert.Equal(t, c.want, resp.OverallCode)
			for i, st := range resp.Statuses {
				fails := c.keys[i] == "on" || c.keys[i] == "oq"
				assert.Equal(t, fails, st.Code == over, "the status of %s is told as it is", c.keys[i])
			}
		})
	}
}

func TestAShadowStatusTellsWhatWouldBe(t *testing.T) {
	r := newRig(t, verdictLimits)
	st := r.ask(desc("os=x")).Statuses[0]
	assert.Equal(t, ok, st.Code)
	assert.Zero(t, st.LimitRemaining)
	assert.NotNil(t, st.CurrentLimit)
	assert.NotNil(t, st.DurationUntilReset)
}

func TestResponseHeaders(t *testing.T) {
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
		asks []string
		want []string // limit, remaining, reset; nil for none
	}{
		"the least remaining":                         {[]string{"five", "three"}, []string{"3", "2", "23"}},
		"the first of equals":                         {[]string{"other", "three"}, []string{"3", "2", "3563"}},
		"the last ordinary one that is over":          {[]string{"zero", "none", "three"}, []string{"0", "0", "23"}},
		"a quota one that is over has least":          {[]string{"three", "quota"}, []string{"0", "0", "50363"}},
		"an ordinary one that is over beats quota":    {[]string{"quota", "none"}, []string{"0", "0", "23"}},
		"no limit at all":                             {[]string{"absent", "unlimited"}, nil},
		"a remaining of 2^32-2 still counts":          {[]string{"most"}, []string{"4294967295", "4294967294", "23"}},
		"part of a second is told as a whole one":     {[]string{"bucket"}, []string{"10", "9", "1"}},
		"unlimited beside a limit doesn't hide it":    {[]string{"unlimited", "five"}, []string{"5", "4", "23"}},
		"sent when over, too, with nothing remaining": {[]string{"none"}, []string{"0", "0", "23"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, limits, func(o *Options) {
				o.Headers = &Headers{Limit: "X-Limit", Remaining: "X-Remaining", Reset: "X-Reset"}
			})
			var ds []*ratelimitv3.RateLimitDescriptor
			for _, k := range c.asks {
				ds = append(ds, desc(k+"=x"))
			}
			var got, names []string
			for _, h := range r.ask(ds...).ResponseHeadersToAdd {
				names = append(names, h.Key)
				got = append(got, h.Value)
			}
			assert.Equal(t, c.want, got)
			if c.want != nil {
				assert.Equal(t, []string{"X-Limit", "X-Remaining", "X-Reset"}, names)
			}
		})
	}
	t.Run("a peek at a limit of 2^32-1 is never told", func(t *testing.T) {
		r := newRig(t, limits, func(o *Options) { o.Headers = &Headers{} })
		assert.Empty(t, r.ask(hits(0, desc("most=x"))).ResponseHeadersToAdd)
	})
	t.Run("global shadow mode leaves headers as they are", func(t *testing.T) {
		r := newRig(t, limits, func(o *Options) { o.Headers = &Headers{}; o.ShadowMode = true })
		assert.Equal(t, "0", r.ask(desc("none=x")).ResponseHeadersToAdd[1].Value)
	})
}
