package quota

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	division "github.com/seed-81f232ab/rls/limit/quota"
)

// Stats describes the service at this moment.
type Stats struct {
	Counts
	Streams, Buckets int
	Fallbacks        int // limits that this replica divides alone, because the store fails
	Rules            []RuleStats
}

// RuleStats has the sums of the buckets of this replica that share limits of a rule, in requests a second.
type RuleStats struct {
	Path         string  `json:"path"`
	Buckets      int     `json:"buckets"`
	GrantedRate  float64 `json:"granted"`
	DemandedRate float64 `json:"demanded"`
}

// Stats describes the service. Rules are sorted by Path.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := Stats{Counts: s.counts, Streams: len(s.streams)}
	for st := range s.streams {
		stats.Buckets += len(st.buckets)
	}
	rules := map[string]RuleStats{}
	for _, g := range s.groups {
		if g.isFallback {
			stats.Fallbacks++
		}
		r := rules[g.path]
		r.Path = g.path
		for i := range g.ownHolders {
			r.Buckets++
			r.GrantedRate += perSecond(&g.ownHolders[i], g.ownHolders[i].Rate)
			r.DemandedRate += perSecond(&g.ownHolders[i], g.ownHolders[i].Demand())
		}
		rules[g.path] = r
	}
	stats.Rules = slices.SortedFunc(maps.Values(rules), func(a, b RuleStats) int { return cmp.Compare(a.Path, b.Path) })
	return stats
}

// perSecond returns the requests a second of a number of tokens in the interval of h.
func perSecond(h *division.Holder, tokens int64) float64 {
	return float64(tokens) * second / float64(max(h.Interval, 1))
}

// CounterShares says which Envoys share a limit. Rates are requests a second.
type CounterShares struct {
	Counter     string  `json:"counter"`
	Rule        string  `json:"rule"`
	Limit       float64 `json:"limit"`
	IsFallback  bool    `json:"is_fallback"`   // this replica divides a part of the limit alone, because the store fails
	OtherEnvoys int     `json:"other_envoys"`  // Envoys with streams to other replicas, and Envoys that have left
	OtherRate   float64 `json:"other_granted"` // what these Envoys may still admit
	Shares      []Share `json:"shares"`        // of the Envoys with streams to this replica
}

// Share is the part of one Envoy.
type Share struct {
	Envoy        string  `json:"envoy"` // its address
	GrantedRate  float64 `json:"granted"`
	EnforcedRate float64 `json:"enforced"` // the largest rate that the Envoy may still enforce
	DemandedRate float64 `json:"demanded"`
	Reason       string  `json:"reason"` // why the share is as large as it is
	Burst        int64   `json:"burst"`
}

// Text describes c in several lines.
func (c *CounterShares) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %.4g requests a second\n", c.Counter, c.Limit)
	if c.IsFallback {
		b.WriteString("  Redis is down, so this replica divides a part of the limit alone\n")
	}
	for _, s := range c.Shares {
		fmt.Fprintf(&b, "  %s asks for %.4g and may admit %.4g: %s", s.Envoy, s.DemandedRate, s.GrantedRate, s.Reason)
		if s.EnforcedRate > s.GrantedRate {
			fmt.Fprintf(&b, "; until it confirms this share, it may admit %.4g", s.EnforcedRate)
		}
		b.WriteString("\n")
	}
	if c.OtherEnvoys > 0 {
		fmt.Fprintf(&b, "  %d Envoys that are not connected to this replica may admit %.4g\n", c.OtherEnvoys, c.OtherRate)
	}
	return b.String()
}

func (g *group) reasonForShare(h *division.Holder) string {
	envoys := len(g.ownHolders) + g.otherHolders
	equalShare := perSecond(h, g.limit.Rate) / float64(envoys)
	switch rate := perSecond(h, h.Rate); {
	case h.Burst == 0 && int64(envoys) > g.limit.Burst:
		return "it denies all, because the burst of the limit is smaller than the number of Envoys"
	case float64(h.Rate) >= 0.98*float64(h.Demand()): // smaller changes wait
		return "its demand fits into the limit"
	case rate >= equalShare*0.9:
		return "the Envoys ask for more than the limit"
	}
	return "it gets more when other Envoys have confirmed smaller shares"
}

// Shares returns the shares of each limit whose counter contains filter, sorted by counter. It returns at most limit items.
func (s *Service) Shares(filter string, limit int) []CounterShares {
	s.mu.Lock()
	defer s.mu.Unlock()
	counters := []CounterShares{}
	for _, key := range slices.Sorted(maps.Keys(s.groups)) {
		if strings.Contains(key, filter) && len(counters) < limit {
			counters = append(counters, s.groups[key].shares())
		}
	}
	return counters
}

// SharesOf returns the shares of the limit with this counter, or nil if no Envoy of this replica has a share.
func (s *Service) SharesOf(counter string) *CounterShares {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[counter]
	if g == nil {
		return nil
	}
	return new(g.shares())
}

func (g *group) shares() CounterShares {
	c := CounterShares{
		Counter: g.key, Rule: g.path, IsFallback: g.isFallback, OtherEnvoys: g.otherHolders, OtherRate: g.otherRate,
		Limit: float64(g.limit.Rate) * second / float64(g.limit.Interval), Shares: []Share{},
	}
	for i := range g.ownHolders {
		h := &g.ownHolders[i]
		if b := g.buckets[h.ID]; b != nil {
			c.Shares = append(c.Shares, Share{b.stream.address, perSecond(h, h.Rate), perSecond(h, h.MaxRate), perSecond(h, h.Demand()), g.reasonForShare(h), h.Burst})
		}
	}
	slices.SortFunc(c.Shares, func(a, b Share) int { return cmp.Compare(a.Envoy, b.Envoy) })
	return c
}
