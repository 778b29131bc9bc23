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

// expiryTable remembers keys that have a time to live in Redis. A charge of such a key does not set the
// time to live again. The table keeps a hash of each key. A full bucket forgets one of its keys. The
// next charge of this key sets its time to live once more. The table has no lock.
//
// Two keys have the same hash with a probability of about 2^-64. If the second key is new in Redis,
// its count is 0 before its first charge. The batch then sets its time to live.
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

// contains reports whether the table remembers a time to live of the key with this hash.
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

// doubtfulKeys are keys that may lack a time to live. There are two causes. Redis lost the key
// after SET. Or Redis did not answer a charge, and may execute the charge after the key has
// expired. The next batches set the time to live until Redis confirms the command. doubtfulKeys
// is safe for concurrent use.
type doubtfulKeys struct {
	count atomic.Int64 // of keys

	mu             sync.Mutex // guards the fields below
	keys           []doubtfulKey
	sendAfter      time.Time // the keys are not sent earlier
	lastUnanswered time.Time // when a key was last added with an unanswered charge
}

// doubtfulKey is a key with the command that sets its time to live.
type doubtfulKey struct{ command *goredis.BoolCmd }

// newDoubtfulKey returns the key with this name. ttl is its time to live in milliseconds.
func newDoubtfulKey(name string, ttl int64) doubtfulKey {
	return doubtfulKey{goredis.NewBoolCmd(context.Background(), "PEXPIRE", name, ttl)}
}

const (
	// maxDoubtfulKeys is the maximum number of keys in doubtfulKeys. Further keys are dropped.
	maxDoubtfulKeys = 4096

	// lateChargeTime is the time after an unanswered charge in which Redis may still execute the
	// charge. If Redis confirms a command for a key in this time, the command is sent again.
	lateChargeTime = time.Second

	// resendPause is the pause before the keys are sent again.
	resendPause = 250 * time.Millisecond
)

// addUnanswered adds a key whose charge was sent and not answered.
func (d *doubtfulKeys) addUnanswered(k doubtfulKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastUnanswered = time.Now()
	d.add(k)
}

// add adds k, unless there are too many keys. The caller holds d.mu.
func (d *doubtfulKeys) add(k doubtfulKey) {
	if len(d.keys) < maxDoubtfulKeys {
		d.keys = append(d.keys, k)
		d.count.Store(int64(len(d.keys)))
	}
}

// takeKeysToSend removes and returns the keys. It returns nil before sendAfter.
func (d *doubtfulKeys) takeKeysToSend() (keys []doubtfulKey) {
	if d.count.Load() == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.Before(d.sendAfter) {
		return nil
	}
	d.sendAfter = now.Add(resendPause)
	keys, d.keys = d.keys, nil
	d.count.Store(0)
	return keys
}

// addUnconfirmed is called after the commands of keys were sent. It adds the keys whose command failed.
// As long as Redis may still execute an unanswered charge, it adds all keys.
func (d *doubtfulKeys) addUnconfirmed(keys []doubtfulKey) {
	if len(keys) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	isEarly := time.Since(d.lastUnanswered) < lateChargeTime
	for _, k := range keys {
		if isEarly || k.command.Err() != nil {
			k.command.SetErr(nil)
			d.add(k)
		}
	}
}
