package quota

import (
	"cmp"
	"slices"

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
	Path              string
	Granted, Demanded float64
}

// Stats returns the Stats. Rules are sorted by Path.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := Stats{Counts: s.counts, Streams: len(s.streams)}
	for st := range s.streams {
		stats.Buckets += len(st.buckets)
	}
	rules := map[string]*RuleStats{}
	for _, g := range s.groups {
		if g.isFallback {
			stats.Fallbacks++
		}
		r := rules[g.path]
		if r == nil {
			r = &RuleStats{Path: g.path}
			rules[g.path] = r
		}
		for i := range g.known {
			r.Granted += perSecond(&g.known[i], g.known[i].Rate)
			r.Demanded += perSecond(&g.known[i], g.known[i].Demand())
		}
	}
	for _, r := range rules {
		stats.Rules = append(stats.Rules, *r)
	}
	slices.SortFunc(stats.Rules, func(a, b RuleStats) int { return cmp.Compare(a.Path, b.Path) })
	return stats
}

// perSecond returns the requests a second of a number of tokens in the interval of h.
func perSecond(h *division.Holder, tokens int64) float64 {
	return float64(tokens) * second / float64(max(h.Interval, 1))
}
