package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
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

func TestLastCountIsTheLastAnswerAboutACounter(t *testing.T) {
	dayEnd := int64(24 * 60 * 60 * microsPerSecond)
	for name, c := range map[string]struct {
		spec     limit.Spec
		isFailed bool
		want     lastCount // without its hash
	}{
		"window":         {limit.Spec{Requests: 5, ChargeDenied: true}, false, lastCount{end: dayEnd, spent: 3, level: 600}},
		"over the limit": {limit.Spec{Requests: 2, ChargeDenied: true}, false, lastCount{end: dayEnd, spent: 2, level: 1000}},
		"limit of 0":     {limit.Spec{ChargeDenied: true}, false, lastCount{}},
		"no answer":      {limit.Spec{Requests: 5, ChargeDenied: true}, true, lastCount{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiterForTest(&countingNode{refuse: func(string) error {
				if c.isFailed {
					return errors.New("connection reset")
				}
				return nil
			}})
			q := l.queues[0]
			q.lastCounts.buckets = newCountBuckets(8)
			l.instances = []*redisInstance{{partitions: 1}}
			lim := perDay(t, c.spec)
			b, _ := batchOf(l, lim, "a", "a", "a")
			b.deadline = time.Now().Add(time.Minute)
			assert.Equal(t, c.isFailed, b.send(t.Context()) != nil)
			h := &backend.Hit{Key: []byte("a"), Limit: lim}
			hash := q.keysWithTTL.hash(q.keyspace.appendCounter(nil, h, unitTime))
			var got lastCount
			for _, bucket := range q.lastCounts.buckets {
				for _, count := range bucket {
					if count.end != 0 {
						require.Equal(t, hash, count.hash)
						got = count
					}
				}
			}
			got.hash = 0
			assert.Equal(t, c.want, got)
			spent, startTime, ok := l.TakeLastCount(unitTime, h)
			assert.Equal(t, c.want.spent > 0, ok)
			if ok {
				assert.Equal(t, int64(c.want.spent), spent)
				assert.Zero(t, startTime.UnixMicro(), "the start of the window")
				_, _, ok = l.TakeLastCount(unitTime, h)
				assert.False(t, ok, "the count is forgotten")
			}
		})
	}
}
