package candidate

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

const maxRules = 1000 // rules that a Status counts; all further rules together are OtherRules

// OtherRules stands for the rules beyond the first 1,000 that deny newly.
const OtherRules = "other"

// Status describes the evaluation of a candidate.
type Status struct {
	Since   time.Time // of the candidate; the zero Time before the first one
	Problem error     // why the newest candidate is not evaluated; nil if it is

	Calls      [len(Results)]uint64 // since Since, by Result
	TotalCalls [len(Results)]uint64 // since the start of the process, by Result

	Rules []RuleCount // that deny newly, those with the most denials first
}

// RuleCount is the number of descriptors that a rule denies newly.
type RuleCount struct {
	Path        string `json:"path"`
	NewlyDenied uint64 `json:"newly_denied"`
}

type stats struct {
	mu              sync.Mutex
	since           time.Time
	problem         error
	calls, oldCalls [len(Results)]uint64 // since the start of the process; those of earlier candidates
	rules           map[string]uint64
}

func (s *stats) reset(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since, s.oldCalls, s.rules = now, s.calls, map[string]uint64{}
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

// Status returns the status of this moment.
func (c *Candidate) Status() Status {
	s := &c.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	status := Status{Since: s.since, Problem: s.problem, TotalCalls: s.calls}
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
