package limitsplan

import "time"

const maxBuckets = 60 // bounds the buckets of a timeline; must be even

// timeline divides the time of a replay into buckets of the same width. If maxBuckets are too few, the width doubles.
type timeline struct {
	start  time.Time
	width  time.Duration
	series [][]uint64 // a series has one number for each bucket
}

func (t *timeline) newSeries() []uint64 {
	t.series = append(t.series, make([]uint64, maxBuckets))
	return t.series[len(t.series)-1]
}

// bucket returns the index of the bucket with this moment. The moment is not before the start.
func (t *timeline) bucket(moment time.Time) int {
	if t.width == 0 {
		t.width = time.Second
		t.start = moment.Truncate(t.width)
	}
	for moment.Sub(t.start) >= maxBuckets*t.width {
		t.width *= 2
		for _, s := range t.series {
			for i := range maxBuckets / 2 { // a new bucket is a pair of old buckets
				s[i] = s[2*i] + s[2*i+1]
			}
			clear(s[maxBuckets/2:])
		}
	}
	return int(max(moment.Sub(t.start), 0) / t.width)
}
