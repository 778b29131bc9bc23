package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	counters "github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

// decisionsPerSweep is the number of decisions after which expired counters are freed.
const decisionsPerSweep = 256

// local decides calls in this process, as the service would.
type local struct {
	config    *descriptors.Config
	ratio     float64
	limiter   *counters.Limiter
	clock     Clock
	decisions atomic.Uint64
}

func newLocal(limits *Limits, ratio float64, clock Clock) (*local, error) {
	if limits == nil {
		return nil, errors.New("options: Limits: got none, want limits from ReadLimits or ParseLimits")
	}
	if ratio == 0 {
		ratio = 1
	}
	if !(ratio > 0 && ratio <= 1) { // NaN is not > 0
		return nil, fmt.Errorf("options: LocalRatio: got %v, want above 0 and at most 1", ratio)
	}
	return &local{config: limits.config, ratio: ratio, limiter: counters.New(counters.Options{}), clock: clock}, nil
}

// localCall is the work of one call.
type localCall struct {
	call    *call
	rules   []*descriptors.Rule // of each descriptor, or nil
	hits    []backend.Hit
	results []backend.Result
	owners  []int // index of each hit's descriptor
	limits  []*descriptors.RateLimit
}

func (l *local) decide(ctx context.Context, c *call) (*answer, error) {
	now := l.clock.Now()
	if l.decisions.Add(1)%decisionsPerSweep == 0 {
		l.limiter.Sweep(now)
	}
	lc := &localCall{call: c}
	if err := l.match(lc); err != nil {
		return nil, err
	}
	l.take(ctx, now, lc)
	a := lc.answer()
	if !a.allowed && c.chargesNothingIfDenied {
		l.refundAdmitted(ctx, now, lc)
	}
	return a, nil
}

// match finds the rules of c and prepares the hits.
func (l *local) match(c *localCall) error {
	domain := l.config.Domain(c.call.request.Domain)
	replaced := map[string]bool{}
	for _, d := range c.call.request.Descriptors {
		var rule *descriptors.Rule
		if domain != nil {
			rule = domain.Match(d.entries())
		}
		c.rules = append(c.rules, rule)
		if rule == nil {
			continue
		}
		if c.call.refunds && rule.NoRefunds {
			return fmt.Errorf("rule %s has refunds: false", rule.Path)
		}
		for _, rl := range rule.Limits {
			for _, name := range rl.Replaces {
				replaced[name] = true
			}
		}
	}
	for i, rule := range c.rules {
		if rule == nil {
			continue
		}
		key := rule.AppendKey(nil, c.call.request.Domain, c.call.request.Descriptors[i].entries())
		for _, rl := range rule.Limits {
			if rl.Unlimited || replaced[rl.Name] {
				continue
			}
			n := c.call.hits()
			if rule.HasHolds {
				n = descriptors.AdjustHitsForHolds(rl.Limit, n)
			}
			c.hits = append(c.hits, backend.Hit{
				Key: key, Limit: l.limitOf(rl, c.call), Rule: rule.Path, N: n,
				HoldID: c.call.holdID, Shadow: rule.InShadow(key),
			})
			c.owners = append(c.owners, i)
			c.limits = append(c.limits, rl)
		}
	}
	return nil
}

// limitOf returns the share of rl that this process may use.
func (l *local) limitOf(rl *descriptors.RateLimit, c *call) *limit.Limit {
	share := rl.Limit
	if l.ratio < 1 {
		share = share.Scaled(l.ratio)
	}
	if c.chargesNothingIfDenied {
		share = share.NotCharging()
	}
	return share
}

// shortestHold returns the shorter of two holds. 0 stands for no hold.
func shortestHold(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// take decides the hits of c. A hit above the max_hits of its rule is denied and not charged. If this
// denies the call, the call charges nothing.
func (l *local) take(ctx context.Context, now time.Time, c *localCall) {
	tooLarge := make([]bool, len(c.hits))
	isDenied := make([]bool, len(c.rules))
	for j, h := range c.hits {
		tooLarge[j] = c.rules[c.owners[j]].IsTooLarge(h.N)
		isDenied[c.owners[j]] = isDenied[c.owners[j]] || tooLarge[j] && !h.Shadow
	}
	isCallDenied := c.isDenied(isDenied)
	for j := range c.hits {
		if isCallDenied || tooLarge[j] {
			c.hits[j].N = 0
		}
	}
	c.results = make([]backend.Result, len(c.hits))
	l.limiter.Take(ctx, now, c.hits, c.results)
	for j := range c.hits {
		if tooLarge[j] {
			c.results[j].Allowed, c.results[j].RetryAfter = false, limit.Never
		}
	}
}

// isDenied reports whether the call is denied if these descriptors are. An ordinary descriptor denies
// the call alone, and the descriptors in quota mode deny it together.
func (c *localCall) isDenied(isDenied []bool) bool {
	quotas, deniedQuotas := 0, 0
	for i, rule := range c.rules {
		switch {
		case !slices.Contains(c.owners, i):
		case rule.QuotaMode:
			quotas++
			if isDenied[i] {
				deniedQuotas++
			}
		case isDenied[i]:
			return true
		}
	}
	return quotas > 0 && deniedQuotas == quotas
}

// refundAdmitted refunds the admitted hits of a denied call.
func (l *local) refundAdmitted(ctx context.Context, now time.Time, c *localCall) {
	var refunds []backend.Hit
	for j, h := range c.hits {
		if c.results[j].Allowed && !c.results[j].Held && h.N > 0 { // a renewed hold stays
			h.N = -h.N
			refunds = append(refunds, h)
		}
	}
	l.limiter.Take(ctx, now, refunds, make([]backend.Result, len(refunds)))
}

// answer returns the answer to the call. A call is denied if an ordinary descriptor is over
// its limit, or if all descriptors in quota mode are.
func (c *localCall) answer() *answer {
	a := &answer{}
	var windowWait time.Duration // until the denied limits without holds admit the call
	deniedDescriptors := make([]bool, len(c.rules))
	for j := range c.hits {
		h, r := &c.hits[j], &c.results[j]
		denied := !r.Allowed && !h.Shadow
		deniedDescriptors[c.owners[j]] = deniedDescriptors[c.owners[j]] || denied
		a.neverFits = a.neverFits || denied && r.RetryAfter == limit.Never
		if h.Limit.Algorithm.HasHolds() && h.HoldID != "" {
			a.holdTime = shortestHold(a.holdTime, time.Duration(h.Limit.Hold)*time.Microsecond)
		}
		wait := time.Duration(h.Limit.DurationUntilReset(r.Result)) * time.Microsecond
		if denied && !h.Limit.Algorithm.HasHolds() {
			windowWait = max(windowWait, wait)
		}
		a.addStatus(limitStatus{
			name: c.limits[j].Name, max: uint32(h.Limit.Max()), window: windowOf(c.limits[j].Response),
			remaining: uint32(min(max(r.Remaining, 0), 1<<32-1)), reset: wait,
		}, denied)
		if r.Allowed {
			a.resetAfter = max(a.resetAfter, time.Duration(h.Limit.ForgottenAfter(r.Result))*time.Microsecond)
		}
	}
	a.allowed = !c.isDenied(deniedDescriptors)
	a.neverFits = a.neverFits && !a.allowed
	if !a.allowed && windowWait > 0 { // a release of a hold can't help
		a.holdTime, a.retryAfter = 0, windowWait
	}
	return a
}
