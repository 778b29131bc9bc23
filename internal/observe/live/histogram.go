package live

import (
	"math/bits"
	"time"
)

// histogram counts durations from 1 µs to 17 s. The error of a quantile is at most 12.5 %, because each power of two
// has eight buckets.
type histogram [histogramBuckets]uint32

const (
	minDurationBits  = 10 // the first bucket ends at 2^10 ns
	maxDurationBits  = 34 // the last bucket starts at 2^34 ns
	bucketBits       = 3  // each power of two has 2^3 buckets
	histogramBuckets = (maxDurationBits-minDurationBits)<<bucketBits + 2
)

func bucketOf(d time.Duration) int {
	if d < 1<<minDurationBits {
		return 0
	}
	power := bits.Len64(uint64(d)) - 1
	if power >= maxDurationBits {
		return histogramBuckets - 1
	}
	bucketInPower := int(d>>(power-bucketBits)) & (1<<bucketBits - 1)
	return 1 + (power-minDurationBits)<<bucketBits + bucketInPower
}

func bucketStart(bucket int) time.Duration {
	if bucket == 0 {
		return 0
	}
	power, bucketInPower := (bucket-1)>>bucketBits, (bucket-1)&(1<<bucketBits-1)
	return time.Duration(1<<bucketBits+bucketInPower) << (power + minDurationBits - bucketBits)
}

func (h *histogram) add(other *histogram) {
	for i := range h {
		h[i] += other[i]
	}
}

// quantile returns the quantile q of the durations, in seconds: with a q of 0.99, 99 % of the durations are shorter. If
// there are no durations, quantile returns Unknown. A duration in otherHistogram counts as otherShare durations.
func (h *histogram) quantile(q float64, otherHistogram *histogram, otherShare float64) Value {
	var counts [histogramBuckets]float64
	total := 0.0
	for i := range counts {
		counts[i] = float64(h[i]) + otherShare*float64(otherHistogram[i])
		total += counts[i]
	}
	if total == 0 {
		return Unknown
	}
	rank := q * total
	for i, count := range counts {
		if count < rank-1e-6 || count == 0 { // rank has a rounding error
			rank -= count
			continue
		}
		start := bucketStart(i)
		length := bucketStart(min(i+1, histogramBuckets-1)) - start
		return Value((float64(start) + rank/count*float64(length)) / float64(time.Second))
	}
	return Value(bucketStart(histogramBuckets - 1).Seconds())
}
