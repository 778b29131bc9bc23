package candidate

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

const maxRules = 1000 // bounds the rules that a Status counts one by one; OtherRules counts all other rules together

// OtherRules is the path of the RuleCount for all rules after the first 1,000 rules.
const OtherRules = "other"

// Status describes the evaluation of a candidate.
type Status struct {
	Since   time.Time // the start of the evaluation of this candidate; the zero Time before the first candidate
	Problem error     // the reason why the newest candidate is not evaluated; nil if the newest candidate is evaluated

	Calls      [len(Results)]uint64 // the calls since Since; the index is the Result
	TotalCalls [len(Results)]uint64 // the calls since the start of the process; the index is the Result

	Rules []RuleCount // the rules with new denials; the rule with the most new denials comes first
}

// RuleCount is the number of descriptors that a rule denies newly.
type RuleCount struct {
	Path        string `json:"path"`
	NewlyDenied uint64 `json:"newly_denied"`
}

type stats struct {
	mu        sync.Mutex
	startTime time.Time
	problem   error
	calls     [len(Results)]uint64 // the calls since the start of the process
	oldCalls  [len(Results)]uint64 // the calls of earlier candidates
	rules     map[string]uint64    // the descriptors that are newly denied; the key is the path of the rule
}

func (s *stats) reset(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startTime, s.oldCalls, s.rules = now, s.calls, map[string]uint64{}
}

func (s *stats) setProblem(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = err
}

func (s *stats) add(r Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[r]++
}

func (s *stats) addRule(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.rules[path]; !ok && len(s.rules) >= maxRules {
		path = OtherRules
	}
	s.rules[path]++
}

// Status returns the current status.
func (c *Candidate) Status() Status {
	s := &c.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	status := Status{Since: s.startTime, Problem: s.problem, TotalCalls: s.calls}
	for r := range s.calls {
		status.Calls[r] = s.calls[r] - s.oldCalls[r]
	}
	for path, count := range s.rules {
		status.Rules = append(status.Rules, RuleCount{path, count})
	}
	slices.SortFunc(status.Rules, func(a, b RuleCount) int {
		return cmp.Or(cmp.Compare(b.NewlyDenied, a.NewlyDenied), strings.Compare(a.Path, b.Path))
	})
	return status
}
