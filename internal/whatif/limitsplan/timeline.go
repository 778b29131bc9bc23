package limitsplan

import "time"

// maxBuckets is the largest number of buckets of a timeline. It is even.
const maxBuckets = 60

// timeline divides the time of a replay into buckets of the same width. If there are more
// than maxBuckets, the width doubles.
type timeline struct {
	start  time.Time
	width  time.Duration
	series []*series
}

// series has a number for each bucket of its timeline.
type series [maxBuckets]uint64

func (t *timeline) newSeries() *series {
	s := new(series)
	t.series = append(t.series, s)
	return s
}

// bucket returns the bucket of a moment, which is never before the start.
func (t *timeline) bucket(moment time.Time) int {
	if t.width == 0 {
		t.width = time.Second
		t.start = moment.Truncate(t.width)
	}
	for moment.Sub(t.start) >= maxBuckets*t.width {
		t.width *= 2
		for _, s := range t.series {
			s.fold()
		}
	}
	return int(max(moment.Sub(t.start), 0) / t.width)
}

// fold adds each pair of buckets up.
func (s *series) fold() {
	for i := range maxBuckets / 2 {
		s[i] = s[2*i] + s[2*i+1]
	}
	clear(s[maxBuckets/2:])
}
