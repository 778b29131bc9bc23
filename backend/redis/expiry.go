package redis

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// expiryTable remembers keys that have a time to live in Redis, so that a charge need not set
// it again. The table keeps a hash of each key, and a full bucket forgets one of its keys. A
// forgotten key gets its time to live once more. The table has no lock.
//
// Two keys share a hash with a chance of about 2^-64. Then the reply to the first charge shows
// that the key is new.
type expiryTable struct {
	seed    maphash.Seed
	buckets []expiryBucket // a power of two
}

// expiryBucket has the size of a cache line.
type expiryBucket [8]atomic.Uint64

// maxKnownKeys is the number of keys in all expiry tables of one Redis. They take 2 MB.
const maxKnownKeys = 1 << 18

// newExpiryTable returns a table for at least size keys.
func newExpiryTable(size int) *expiryTable {
	buckets := 1
	for buckets*len(expiryBucket{}) < size {
		buckets *= 2
	}
	return &expiryTable{seed: maphash.MakeSeed(), buckets: make([]expiryBucket, buckets)}
}

// hash returns the hash of a key. It is never 0.
func (t *expiryTable) hash(name []byte) uint64 { return max(maphash.Bytes(t.seed, name), 1) }

func (t *expiryTable) bucket(hash uint64) *expiryBucket {
	return &t.buckets[hash&uint64(len(t.buckets)-1)]
}

// contains reports whether the key with this hash has a time to live.
func (t *expiryTable) contains(hash uint64) bool {
	bucket := t.bucket(hash)
	for i := range bucket {
		if bucket[i].Load() == hash {
			return true
		}
	}
	return false
}

// add remembers that the key with this hash has a time to live.
func (t *expiryTable) add(hash uint64) {
	bucket := t.bucket(hash)
	for i := range bucket {
		if bucket[i].Load() == 0 {
			bucket[i].Store(hash)
			return
		}
	}
	bucket[rand.IntN(len(bucket))].Store(hash)
}

// doubtfulKeys are keys that may lack a time to live. Either Redis lost such a key after the
// key got its time to live, or Redis may execute an unanswered charge after the key's end. The
// next batches set the time to live until Redis confirms it. It is safe for concurrent use.
type doubtfulKeys struct {
	count atomic.Int64 // of keys

	mu         sync.Mutex // guards the fields below
	keys       []doubtfulKey
	due        time.Time // when the keys shall be sent
	unanswered time.Time // when a key was last added with an unanswered charge
}

// doubtfulKey is a command that gives a key a time to live.
type doubtfulKey struct{ command *goredis.BoolCmd }

// newDoubtfulKey returns the key of this name, with a time to live in milliseconds.
func newDoubtfulKey(name string, ttl int64) doubtfulKey {
	return doubtfulKey{goredis.NewBoolCmd(context.Background(), "PEXPIRE", name, ttl)}
}

const (
	// maxDoubtfulKeys bounds the keys of a queue.
	maxDoubtfulKeys = 4096

	// doubtTime is the time after an unanswered charge in which Redis may still execute
	// the charge. A confirmation in this time is not enough.
	doubtTime = time.Second

	// doubtPause is the pause before the keys are sent again.
	doubtPause = 250 * time.Millisecond
)

// addUnanswered adds a key whose charge was sent and not answered.
func (d *doubtfulKeys) addUnanswered(k doubtfulKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unanswered = time.Now()
	d.add(k)
}

// add needs the lock.
func (d *doubtfulKeys) add(k doubtfulKey) {
	if len(d.keys) < maxDoubtfulKeys {
		d.keys = append(d.keys, k)
		d.count.Store(int64(len(d.keys)))
	}
}

// takeDue removes the keys if they are due, and returns them.
func (d *doubtfulKeys) takeDue() (keys []doubtfulKey) {
	if d.count.Load() == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.Before(d.due) {
		return nil
	}
	d.due = now.Add(doubtPause)
	keys, d.keys = d.keys, nil
	d.count.Store(0)
	return keys
}

// confirm adds those keys again whose commands failed or came too early.
func (d *doubtfulKeys) confirm(keys []doubtfulKey) {
	if len(keys) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	isEarly := time.Since(d.unanswered) < doubtTime
	for _, k := range keys {
		if isEarly || k.command.Err() != nil {
			k.command.SetErr(nil)
			d.add(k)
		}
	}
}
