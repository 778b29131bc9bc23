package redis

import (
	"context"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/limit"
)

const minWindowMargin = 10 * time.Second

// windowMargin returns the least time from the end of a window until its key expires. During this time, a replica with a
// wrong estimate of the clock of Redis can still charge the old window.
func (o *Options) windowMargin() time.Duration { return max(minWindowMargin, 2*o.Timeout) }

// windowTTL returns the time to live of the key of a window of l, in milliseconds. The window ends in microsToWindowEnd
// microseconds. Windows shorter than a second get no jitter, because jitter would keep too many of their keys.
func (o *Options) windowTTL(l *limit.Limit, microsToWindowEnd int64) int64 {
	ttl := (microsToWindowEnd+999)/1000 + o.windowMargin().Milliseconds()
	if l.Period() >= microsPerSecond {
		ttl += o.randomJitterMillis()
	}
	return ttl
}

func (o *Options) randomJitterMillis() int64 { return rand.Int64N(o.Jitter.Milliseconds() + 1) }

// setTTL sends commands that set the time to live of keys. Redis has lost these keys while ttlTable remembered them, so
// the batch has charged the keys without a SET.
func (b *batch) setTTL(ctx context.Context, s *server, commands []goredis.Cmder) {
	if len(commands) > 0 {
		s.execute(ctx, commands)
		b.queue.ttlCommandStore.addForResend(commands)
	}
}

// newTTLCommand returns the command that sets the time to live of a key to ttl, in milliseconds.
func (r *redisInstance) newTTLCommand(name string, ttl int64) goredis.Cmder {
	if r.isSetForbidden.Load() {
		return goredis.NewBoolCmd(context.Background(), "EXPIRE", name, ttlSeconds(ttl))
	}
	return goredis.NewBoolCmd(context.Background(), "PEXPIRE", name, ttl)
}

func ttlSeconds(ttl int64) int64 { return (ttl + 999) / 1000 }

// ttlTable remembers the hashes of keys that have a time to live in Redis. Charges of these keys don't set the time to
// live again. A full bucket forgets a random key. If a new key has the hash of another key, the table seems to contain
// the new key. Its count before the first charge is 0, so the batch calls setTTL for the key.
type ttlTable struct {
	seed    maphash.Seed
	buckets []ttlBucket // the length is a power of two
}

// ttlBucket has the size of a cache line.
type ttlBucket [8]atomic.Uint64

// maxTTLKeys is the number of keys in all ttlTables of one Redis. The tables take 2 MB.
const maxTTLKeys = 1 << 18

// newTTLTable returns a table for at least size keys.
func newTTLTable(size int) *ttlTable {
	return &ttlTable{seed: maphash.MakeSeed(), buckets: make([]ttlBucket, nextPowerOfTwo(size/len(ttlBucket{})))}
}

func nextPowerOfTwo(n int) int { return 1 << bits.Len(uint(max(n-1, 0))) }

// hash returns the hash of a key. It is never 0.
func (t *ttlTable) hash(name []byte) uint64 { return max(maphash.Bytes(t.seed, name), 1) }

func (t *ttlTable) bucket(hash uint64) *ttlBucket {
	return &t.buckets[hash&uint64(len(t.buckets)-1)]
}

func (t *ttlTable) contains(hash uint64) bool {
	bucket := t.bucket(hash)
	for i := range bucket {
		if bucket[i].Load() == hash {
			return true
		}
	}
	return false
}

func (t *ttlTable) add(hash uint64) {
	bucket := t.bucket(hash)
	for i := range bucket {
		if bucket[i].Load() == 0 {
			bucket[i].Store(hash)
			return
		}
	}
	bucket[rand.IntN(len(bucket))].Store(hash)
}

// ttlCommandStore has commands that set the time to live of keys, and the next batches send these commands. A key lacks
// a time to live if Redis lost the key after SET, or if Redis executes an unanswered charge after the key has expired.
type ttlCommandStore struct {
	mu                 sync.Mutex // guards the fields below
	commands           []goredis.Cmder
	earliestSendTime   time.Time // before this time, no command is sent
	lastUnansweredTime time.Time // when a command was last added after an unanswered charge
}

const (
	maxKeysWithoutTTL = 4096                   // the most commands; rls drops further commands
	lateChargeTime    = time.Second            // the time in which Redis may still execute an unanswered charge
	resendPause       = 250 * time.Millisecond // the pause before rls sends the commands again
)

func (s *ttlCommandStore) addUnanswered(command goredis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastUnansweredTime = time.Now()
	s.add(command)
}

// add adds a command, unless there are too many. The caller holds s.mu.
func (s *ttlCommandStore) add(command goredis.Cmder) {
	if len(s.commands) < maxKeysWithoutTTL {
		s.commands = append(s.commands, command)
	}
}

// takeCommands removes and returns the commands. It returns nil before earliestSendTime.
func (s *ttlCommandStore) takeCommands() (commands []goredis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.commands) == 0 || time.Now().Before(s.earliestSendTime) {
		return nil
	}
	s.earliestSendTime = time.Now().Add(resendPause)
	commands, s.commands = s.commands, nil
	return commands
}

// addForResend adds the sent commands that failed. While Redis may still execute an unanswered charge, it adds all sent
// commands.
func (s *ttlCommandStore) addForResend(commands []goredis.Cmder) {
	if len(commands) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	mayChargeLate := time.Since(s.lastUnansweredTime) < lateChargeTime
	for _, cmd := range commands {
		if mayChargeLate || cmd.Err() != nil {
			cmd.SetErr(nil)
			s.add(cmd)
		}
	}
}
