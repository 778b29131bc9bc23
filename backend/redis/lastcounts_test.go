package redis

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFullBucketForgetsTheLowestLevel(t *testing.T) {
	for name, c := range map[string]struct {
		newCount      lastCount
		forgottenHash uint64
	}{
		"a lower level is not kept":                            {lastCount{hash: 5, end: 100, level: 9}, 5},
		"an equal level replaces the lowest level":             {lastCount{hash: 5, end: 100, level: 10}, 2},
		"a higher level replaces the lowest level":             {lastCount{hash: 5, end: 100, level: 900}, 2},
		"a lower level of the same counter replaces its count": {lastCount{hash: 3, end: 100, level: 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			counts := lastCounts{buckets: newCountBuckets(1)}
			for i, level := range []uint32{20, 10, 30, 40} {
				counts.set(lastCount{hash: uint64(i + 1), end: 100, level: level}, 1)
			}
			counts.set(c.newCount, 1)
			for hash := range uint64(6) {
				got, ok := counts.take(hash, 1)
				isKept := hash > 0 && hash != c.forgottenHash && (hash < 5 || hash == c.newCount.hash)
				assert.Equal(t, isKept, ok, hash)
				if hash == c.newCount.hash && ok {
					assert.Equal(t, c.newCount, got)
				}
			}
		})
	}
}

func TestFullBucketForgetsAnEndedCountFirst(t *testing.T) {
	counts := lastCounts{buckets: newCountBuckets(1)}
	for i, end := range []int64{100, 100, 50, 100} {
		counts.set(lastCount{hash: uint64(i + 1), end: end, level: 700}, 1)
	}
	counts.set(lastCount{hash: 5, end: 100, level: 1}, 50)
	for hash, want := range map[uint64]bool{1: true, 2: true, 3: false, 4: true, 5: true} {
		_, ok := counts.take(hash, 60)
		assert.Equal(t, want, ok, hash)
	}
}
