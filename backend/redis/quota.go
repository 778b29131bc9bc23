package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// Quotas is a backend.QuotaStore in Redis. The names of its keys are in keyspace.quotaState.
//
// Beside its states, each hash tag has a mark: the time at which rls first wrote the mark. If Redis loses its data, it
// loses the mark too, and the next change writes a new mark with a later time.
type Quotas struct {
	client    goredis.UniversalClient
	keyspaces []keyspace
	timeout   time.Duration
}

const (
	quotaHashTags   = 64
	maxQuotaRounds  = 5   // the most tries of one change
	maxQuotaChanges = 256 // the changes in one pipeline
	quotaMarkTTL    = 24 * time.Hour
)

// NewQuotas returns a store of quotas in s. timeout bounds each trip. Redis need not be reachable.
func NewQuotas(s Server, keyPrefix string, timeout time.Duration) (*Quotas, error) {
	a, err := parse(s)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	o := a.options(timeout, maxConnections)
	o.MaxRetries = -1 // the counts of a report must not be added twice
	q := &Quotas{client: a.open(o), timeout: timeout}
	tags := []string{""}
	if a.kind == Cluster {
		tags = hashTags(quotaHashTags)
	}
	for _, tag := range tags {
		q.keyspaces = append(q.keyspaces, keyspace(keyPrefix+tag))
	}
	return q, nil
}

// Close closes all connections.
func (q *Quotas) Close() error { return q.client.Close() }

// readQuotaScript returns the time of Redis, the state and the mark. KEYS: the state, the mark.
const readQuotaScript = `
local time = redis.call('TIME')
return {time[1], time[2], redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[2]) or ''}`

// storeQuotaScript stores a new state and returns 1 if Redis still has the old state and the old mark, or else returns 0.
// KEYS: the state, the mark. ARGV: the old state, the old mark, the new state, its time to live in milliseconds, the new
// mark, and the time to live of the mark.
const storeQuotaScript = `
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] or (redis.call('GET', KEYS[2]) or '') ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[6])
return 1`

// keepMarkScript writes a mark if Redis has none, and renews its time to live. KEYS: the mark. ARGV: the time to live.
const keepMarkScript = `
local time = redis.call('TIME')
redis.call('SET', KEYS[1], time[1] .. string.format('%06d', time[2]), 'NX', 'PX', ARGV[1])
return redis.call('PEXPIRE', KEYS[1], ARGV[1])`

// quotaMarkPause is the time between two renewals of the marks. A failed renewal is repeated after quotaMarkRetryPause.
const quotaMarkPause, quotaMarkRetryPause = time.Hour, time.Second

// KeepMarks keeps the marks in Redis until ctx is done. Without marks, the first Envoys would wait, because a limit without
// a mark looks like a limit whose state is lost.
func (q *Quotas) KeepMarks(ctx context.Context) {
	for pause := time.Duration(0); wait.Sleep(ctx, pause); {
		var commands []goredis.Cmder
		for _, space := range q.keyspaces {
			commands = append(commands, newEval(ctx, keepMarkScript, []string{space.quotaMark()}, quotaMarkTTL.Milliseconds()))
		}
		runPipeline(ctx, q.client, commands)
		pause = quotaMarkPause
		if firstError(commands) != nil {
			pause = quotaMarkRetryPause
		}
	}
}

type quotaRound struct {
	*backend.QuotaChange
	keys []string // the names of the state and of the mark
}

var errQuotaConflicts = errors.New("other replicas have changed the quota at the same time")

// Update implements backend.QuotaStore.
func (q *Quotas) Update(ctx context.Context, changes []*backend.QuotaChange) {
	for chunk := range slices.Chunk(changes, maxQuotaChanges) {
		rounds := make([]quotaRound, len(chunk))
		for i, c := range chunk {
			space := q.keyspaces[partitionOf(c.Key, len(q.keyspaces))]
			rounds[i] = quotaRound{c, []string{space.quotaState(c.Key), space.quotaMark()}}
			c.Conflicts = 0
		}
		for try := 0; try < maxQuotaRounds && len(rounds) > 0; try++ {
			rounds = q.tryOnce(ctx, rounds)
		}
	}
}

// tryOnce reads the states, applies the changes and stores the results. It returns the rounds with a conflict.
func (q *Quotas) tryOnce(ctx context.Context, rounds []quotaRound) (conflicts []quotaRound) {
	ctx, cancel := context.WithTimeout(ctx, 2*q.timeout)
	defer cancel()
	readCommands := make([]goredis.Cmder, len(rounds))
	for i, r := range rounds {
		readCommands[i] = newEval(ctx, readQuotaScript, r.keys)
	}
	runPipeline(ctx, q.client, readCommands)

	var storeCommands []goredis.Cmder
	var storedRounds []quotaRound
	for i, r := range rounds {
		reply, err := readCommands[i].(*goredis.Cmd).StringSlice()
		if err == nil && len(reply) != 4 {
			err = fmt.Errorf("the script replied %d texts, want 4", len(reply))
		}
		if r.Err = err; err != nil {
			continue
		}
		seconds, _ := strconv.ParseInt(reply[0], 10, 64)
		micros, _ := strconv.ParseInt(reply[1], 10, 64)
		now := seconds*microsPerSecond + micros
		intactSince, err := strconv.ParseInt(reply[3], 10, 64)
		if err != nil || intactSince > now { // no mark, or the clock of Redis went back
			intactSince = now
		}
		newState, ttl := r.Apply([]byte(reply[2]), intactSince, now)
		storeCommands = append(storeCommands, newEval(ctx, storeQuotaScript, r.keys, reply[2], reply[3], newState, ttl.Milliseconds()+1, intactSince, quotaMarkTTL.Milliseconds()))
		storedRounds = append(storedRounds, r)
	}
	if len(storeCommands) > 0 {
		runPipeline(ctx, q.client, storeCommands)
	}
	for i, r := range storedRounds {
		var isStored bool
		if isStored, r.Err = storeCommands[i].(*goredis.Cmd).Bool(); r.Err == nil && !isStored {
			r.Conflicts++
			r.Err = errQuotaConflicts
			conflicts = append(conflicts, r)
		}
	}
	return conflicts
}

func newEval(ctx context.Context, script string, keys []string, args ...any) *goredis.Cmd {
	all := []any{"EVAL", script, len(keys)}
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := goredis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3)
	return cmd
}
