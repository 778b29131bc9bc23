package lease

import "github.com/seed-81f232ab/rls/backend"

// Stats counts what leases did.
type Stats struct {
	Leases int64 // counters with a lease, also without permits
	Held   int64 // permits that this replica holds

	// Sums since New. Taken = Used + Returned + Lapsed + Held, except for the permits of trips in
	// progress.
	Taken    int64 // permits taken from the shared counters
	Used     int64 // permits that admitted a hit
	Returned int64 // permits that went back
	Lapsed   int64 // permits that expired, or that a failed trip has lost

	// SavedTrips is the number of calls that needed no trip.
	SavedTrips int64
}

// Stats returns the sums over all leases.
func (l *Limiter) Stats() (sum Stats) {
	l.eachShard(func(s *shard) {
		sum.Leases += int64(len(s.leases))
		for _, e := range s.leases {
			sum.Held += e.permits
		}
		sum.Taken += s.stats.Taken
		sum.Used += s.stats.Used
		sum.Returned += s.stats.Returned
		sum.Lapsed += s.stats.Lapsed
		sum.SavedTrips += s.stats.SavedTrips
	})
	return sum
}

func (s *shard) countSavedTrip() {
	s.mu.Lock()
	s.stats.SavedTrips++
	s.mu.Unlock()
}

// countReturn counts the permits of g, which are back or lost.
func (l *Limiter) countReturn(g *permitReturn) {
	s, _ := l.lockLease(&backend.Hit{Key: g.key, Limit: g.limit})
	if g.isLost {
		s.stats.Lapsed += g.permits
	} else {
		s.stats.Returned += g.permits
	}
	s.mu.Unlock()
}
