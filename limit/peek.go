package limit

// FromPeek turns the answer to a peek into the answer to n hits that are not charged. The hits
// pass if n is at most Remaining, or if they would renew a hold. Otherwise RetryAfter is ResetAfter, which is an upper bound, or
// Never if n exceeds the capacity.
func (l *Limit) FromPeek(peek Result, n int64) Result {
	peek.Allowed, peek.RetryAfter = n <= peek.Remaining || peek.Held, 0
	switch {
	case peek.Allowed:
	case n > l.capacity:
		peek.RetryAfter = Never
	default:
		peek.RetryAfter = peek.ResetAfter
	}
	return peek
}
