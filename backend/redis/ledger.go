package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
)

// Ledger is a backend.Ledger in the global Redis. For each counter, it has a hash with the sold hits of each window, or with
// the level of the bucket, and a hash with the demand of each region. Their names are names of counters with the suffix
// @<start of the window>, @bucket or @demand, so ResetPrefix finds them.
type Ledger struct{ *Limiter }

var _ backend.Ledger = Ledger{}

// ledgerScript sells hits and returns the granted hits and the free hits. All times are in microseconds.
//
// If the regions want more than there is, the script divides what is free by max–min fairness: it raises the part of all
// regions equally, until a region has what it needs or nothing is left. The need of another region is its peak rate of the
// last two reports, for the rest of the window. The unused hits of a region stay below its part of max_unused, in proportion
// to the demand.
//
// KEYS: the window or bucket, the window before, the window after, the demand.
const ledgerScript = `
local region, kind = ARGV[1], ARGV[2]
local pool, want, least, unused, max_unused = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local first, last, rate, report_life = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local rate_tokens, rate_micros = tonumber(ARGV[12]), tonumber(ARGV[13])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local length = last - first

local function sold(key) return tonumber(redis.call('HGET', key, 'sold') or 0) end

local free, level
local time_left = math.min(math.max(last - now, 0), length)
if kind == 'bucket' then
  local state = redis.call('HMGET', KEYS[1], 'level', 'time')
  local added = math.max(now - tonumber(state[2] or now), 0) * rate_tokens / rate_micros
  level = math.min(tonumber(state[1] or pool) + added, pool)
  free, time_left = math.floor(level), length
  if last <= now or first > now + length then free = 0 end
elseif kind == 'sliding' then
  local sold_before = math.ceil(sold(KEYS[2]) * time_left / length)
  free = pool - sold(KEYS[1]) - math.max(sold_before, sold(KEYS[3]))
  if last <= now then free = 0 end
else
  free = pool - sold(KEYS[1])
end
free = math.max(free, 0)

local own_peak, all_rates, needs = rate, rate, {}
local reports = redis.call('HGETALL', KEYS[4])
for i = 1, #reports, 2 do
  local last_rate, rate_before, report_time = string.match(reports[i + 1], '(%S+) (%S+) (%S+)')
  local peak = math.max(tonumber(last_rate), tonumber(rate_before))
  if now - tonumber(report_time) > report_life then
    redis.call('HDEL', KEYS[4], reports[i])
  elseif reports[i] == region then
    own_peak = last_rate
  else
    all_rates = all_rates + peak
    table.insert(needs, peak * time_left / 1000000)
  end
end
if want == 0 then return {0, free} end
redis.call('HSET', KEYS[4], region, string.format('%s %s %.0f', ARGV[10], own_peak, now))
redis.call('PEXPIRE', KEYS[4], math.ceil(report_life / 1000))

want = math.min(want, math.max(math.floor(max_unused * rate / all_rates) - unused, least, 1))
table.insert(needs, want)
table.sort(needs)
local part, left = want, free
for i = 1, #needs do
  local equal_part = left / (#needs - i + 1)
  if needs[i] > equal_part then
    part = equal_part
    break
  end
  left = left - needs[i]
end
local granted = math.min(want, math.max(math.floor(part), 1), free)

local ttl = math.ceil((math.max(last - now, 0) + 2 * length) / 1000) + 60000
if kind == 'bucket' then
  redis.call('HSET', KEYS[1], 'level', string.format('%.17g', level - granted), 'time', string.format('%.0f', now))
  ttl = math.ceil(pool * rate_micros / math.max(rate_tokens, 1) / 1000) + 60000
elseif granted > 0 then
  redis.call('HINCRBY', KEYS[1], 'sold', granted)
end
if granted > 0 then redis.call('HINCRBY', KEYS[1], 'sold:' .. region, granted) end
redis.call('PEXPIRE', KEYS[1], ttl)
return {granted, free - granted}`

// reportLife is the time after which the ledger forgets the demand of a region, in microseconds.
const reportLife = 3 * microsPerSecond

// Buy implements backend.Ledger. A trip takes at most the timeout of the Limiter.
func (l Ledger) Buy(ctx context.Context, orders []*backend.Order) {
	ctx, cancel := context.WithTimeout(ctx, l.options.Timeout)
	defer cancel()
	commandsOf := map[*redisInstance][]goredis.Cmder{}
	commands := make([]*goredis.Cmd, len(orders))
	for i, o := range orders {
		kind := "fixed"
		switch {
		case o.Share.RateMicros > 0:
			kind = "bucket"
		case o.Share.IsSliding:
			kind = "sliding"
		}
		instance, keys := l.keysOf(o)
		commands[i] = newEval(ctx, ledgerScript, keys, o.Region, kind, o.Share.Pool, o.Want, o.Least, o.Unused, o.Share.MaxUnused,
			o.WindowStart, o.WindowEnd, strconv.FormatFloat(o.Rate, 'f', 3, 64), reportLife, o.Share.RateTokens, o.Share.RateMicros)
		commandsOf[instance] = append(commandsOf[instance], commands[i])
	}
	for instance, list := range commandsOf {
		runPipeline(ctx, instance.client, list)
	}
	for i, o := range orders {
		reply, err := commands[i].Int64Slice()
		if err == nil && len(reply) != 2 {
			err = fmt.Errorf("the script replied %d numbers, want 2", len(reply))
		}
		if o.Err = err; err == nil {
			o.Granted, o.Free = reply[0], reply[1]
		}
	}
}

// Reset implements backend.Ledger.
func (l Ledger) Reset(ctx context.Context, o *backend.Order) error {
	ctx, cancel := context.WithTimeout(ctx, l.options.Timeout)
	defer cancel()
	instance, keys := l.keysOf(o)
	return instance.deleteKeys(ctx, keys)
}

// keysOf returns the Redis of the counter of o, and the keys of ledgerScript.
func (l Ledger) keysOf(o *backend.Order) (*redisInstance, []string) {
	q := l.queues[l.ShardOf(&backend.Hit{Key: o.Key, Limit: o.Limit})]
	name := string(q.keyspace.appendName(nil, layoutCount, o.Limit.Tag(), o.Key, maxNameBytes-maxWindowNameBytes))
	keys := make([]string, 0, 4)
	for _, start := range []int64{o.WindowStart, o.WindowStart - (o.WindowEnd - o.WindowStart), o.WindowEnd} {
		keys = append(keys, name+"@"+strconv.FormatInt(start/1000, 10))
	}
	if o.Share.RateMicros > 0 {
		keys[0] = name + "@bucket"
	}
	return q.instance, append(keys, name+"@demand")
}

// regionsScript compares the settings of the regions. It returns a name and a text for each region with another text.
// KEYS: the settings. ARGV: the region, its text, and the time in seconds after which the settings of a region are forgotten.
const regionsScript = `
local now, others = tonumber(redis.call('TIME')[1]), {}
redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local time, text = string.match(all[i + 1], '(%S+) (.*)')
  if now - tonumber(time) > tonumber(ARGV[3]) then
    redis.call('HDEL', KEYS[1], all[i])
  elseif text ~= ARGV[2] then
    table.insert(others, all[i])
    table.insert(others, text)
  end
end
return others`

const regionSettingsLife = 3 * time.Minute

// CompareRegions stores the settings of a region, and returns the settings of each region that differ.
func (l Ledger) CompareRegions(ctx context.Context, region, settings string) (others map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.options.Timeout)
	defer cancel()
	q := l.queues[0]
	cmd := newEval(ctx, regionsScript, []string{string(q.keyspace) + layoutState + "rls:regions"}, region, settings, int(regionSettingsLife.Seconds()))
	runPipeline(ctx, q.instance.client, []goredis.Cmder{cmd})
	reply, err := cmd.StringSlice()
	others = map[string]string{}
	for i := 0; i+1 < len(reply); i += 2 {
		others[reply[i]] = reply[i+1]
	}
	return others, err
}
