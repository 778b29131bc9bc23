package load

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// Admission is a call that was admitted: the time before the call and the time after its
// answer. The decision lies between the two.
type Admission struct{ Start, End time.Time }

// Demand sends calls on one key of the service "exact" at a rate, to the clients in turn, from one time to another. It
// returns the admitted calls in the order of their ends.
func Demand(clients []*Client, domain, key string, rate int, from, to time.Time) ([]Admission, error) {
	var callers errgroup.Group
	callers.SetLimit(maxOpen)
	var mu sync.Mutex
	var admissions []Admission
	for i := 0; ; i++ {
		due := from.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if due.After(to) {
			break
		}
		sleepUntil(due)
		callers.Go(func() error {
			r := newRequest(curves.Load{Descriptors: 1, Keys: 1, Domain: domain})
			entries := r.message.Descriptors[0].Entries
			entries[0].Value, entries[1].Value = "exact", key
			start := time.Now()
			admitted, err := clients[i%len(clients)].call(i/len(clients), r.message)
			if admitted {
				mu.Lock()
				defer mu.Unlock()
				admissions = append(admissions, Admission{start, time.Now()})
			}
			return err
		})
	}
	err := callers.Wait()
	slices.SortFunc(admissions, func(a, b Admission) int { return a.End.Compare(b.End) })
	return admissions, err
}

// MostInSpan returns the most admissions whose decisions surely lie within one span of the given
// length, wherever the span begins.
func MostInSpan(admissions []Admission, span time.Duration) (most int) {
	for _, first := range admissions {
		n := 0
		for _, a := range admissions {
			if !a.Start.Before(first.Start) && !a.End.After(first.Start.Add(span)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
