-- sliding_log computes the same as limit.slidingLog, which documents the algorithm.
--
-- Redis stores the log as a list: base, time1, sum1, time2, sum2, … An entry is the time of its newest hit in
-- microseconds, and the sum of all hits up to this entry. base is the sum before the first entry. With sums, bisection
-- finds an entry and does not need to read all entries. Sums are modulo 2^40, and a log has at most 2^33 hits.
--
-- s is the state of one key. Its log has the entries s.oldest to s.newest. Redis has s.storedSize entries, with the numbers
-- 1 to s.storedSize. The entries up to s.lastStored are equal in Redis and in s. s.storedTime is the time of the newest
-- entry in Redis, or nil. s.times[i] and s.sums[i] are nil until fetch reads entry i.

local sumModulus = 2 ^ 40 -- sums are modulo this number

local exactEntries, ticks = 2048, 2047 -- equal to exactLogEntries and logTicks in limit/sliding_log.go

-- Reads entry i and the sum before entry i from Redis. Keeps the values that s already has, because they may be newer.
local function fetch(s, i)
  local stored = redis.call('LRANGE', s.key, 2 * i - 2, 2 * i)
  s.sums[i - 1] = s.sums[i - 1] or tonumber(stored[1])
  s.times[i] = s.times[i] or tonumber(stored[2])
  s.sums[i] = s.sums[i] or tonumber(stored[3])
end

-- Returns the time of entry i.
local function timeOf(s, i)
  if not s.times[i] then fetch(s, i) end
  return s.times[i]
end

-- Returns the number of hits in the entries from oldest to i, or 0 if i is oldest - 1.
local function hitsUpTo(s, i)
  if not s.sums[i] then fetch(s, i) end
  return (s.sums[i] - s.sums[s.oldest - 1]) % sumModulus
end

-- Returns the number of the oldest entry i for which isReached(s, i, goal) is true, or newest + 1. If isReached is true for
-- an entry, it must be true for all newer entries too. The search is fast if i is near oldest, as it usually is.
local function find(s, isReached, goal)
  local low, high, stride = s.oldest, s.newest + 1, 1
  while low < high do -- i is in low..high
    local middle = math.min(low + stride - 1, math.floor((low + high) / 2))
    if isReached(s, middle, goal) then
      high = middle
    else
      low, stride = middle + 1, stride * 2
    end
  end
  return low
end

local function reachesHits(s, i, goal) return hitsUpTo(s, i) >= goal end
local function isAfter(s, i, goal) return timeOf(s, i) > goal end

-- Appends an entry of n hits.
local function push(s, time, n)
  local sum = (s.sums[s.newest] + n) % sumModulus
  s.newest = s.newest + 1
  s.times[s.newest], s.sums[s.newest] = time, sum
end

-- Removes the entries after entry newest.
local function truncate(s, newest)
  s.newest, s.lastStored = newest, math.min(s.lastStored, newest)
end

-- Returns now, or the time of the newest entry if that time is later. If the clock was set back by more than a period,
-- first moves all hits into one entry at now, as limit.Log.advance does.
local function advance(s, now, period)
  if s.newest < s.oldest or timeOf(s, s.newest) <= now then return now end
  if timeOf(s, s.newest) - now > period then
    local total = hitsUpTo(s, s.newest)
    truncate(s, s.oldest - 1)
    push(s, now, total)
  end
  return timeOf(s, s.newest)
end

-- Reports whether hits at this time join the newest entry.
local function joinsNewest(s, time, period)
  if s.newest < s.oldest then return false end
  local newest = timeOf(s, s.newest)
  if newest == time then return true end
  if s.newest - s.oldest + 1 < exactEntries then return false end
  local tick = math.ceil(period / ticks)
  return newest - newest % tick == time - time % tick
end

-- Adds n hits, and drops the oldest entries that no decision needs. Returns the new total.
local function charge(s, time, n, total, maxHits, period)
  if joinsNewest(s, time, period) then
    local earlierTotal = hitsUpTo(s, s.newest - 1)
    n, total = n + total - earlierTotal, earlierTotal
    truncate(s, s.newest - 1)
  end
  n = math.min(n, maxHits)
  if total + n > maxHits then
    s.oldest = find(s, reachesHits, total + n - maxHits + 1)
    total = hitsUpTo(s, s.newest)
  end
  push(s, time, n)
  return total + n
end

-- Removes up to n hits from the newest entries. Returns the new total.
local function refund(s, n, total)
  local newTotal = math.max(total - n, 0)
  if newTotal == 0 then
    truncate(s, s.oldest - 1)
  elseif newTotal < total then
    local i = find(s, reachesHits, newTotal)
    local excess = hitsUpTo(s, i) - newTotal
    truncate(s, i)
    if excess > 0 then
      s.sums[i] = (s.sums[i] - excess) % sumModulus
      s.lastStored = math.min(s.lastStored, i - 1)
    end
  end
  return newTotal
end

return {
  -- Returns the state of key. If the value of key is not a log, the state has the error message err.
  open = function(key)
    local size = redis.pcall('LLEN', key)
    if errorOf(size) then return { err = errorOf(size) } end
    local wrongListError = { err = 'WRONGTYPE the key holds another list' }
    if size == 1 or size > 0 and size % 2 == 0 then return wrongListError end
    size = (size - size % 2) / 2
    local s = {
      key = key, times = {}, sums = {},
      oldest = 1, newest = size, lastStored = size, storedSize = size,
    }
    if size == 0 then
      s.sums[0] = 0
    else
      fetch(s, 1)
      if size > 1 then fetch(s, size) end
      s.storedTime = s.times[size]
      if not (s.sums[0] and s.times[1] and s.sums[1] and s.storedTime and s.sums[size]) then return wrongListError end
    end
    return s
  end,

  -- Decides n hits. Returns the numbers spent, reset and retry of the reply of take.
  step = function(s, now, n, max, period, capacity, chargeDenied)
    local time = advance(s, now, period)
    if s.newest >= s.oldest and timeOf(s, s.oldest) + period <= time then
      s.oldest = find(s, isAfter, time - period)
    end
    local total = hitsUpTo(s, s.newest)

    local allowed, retry, reset = true, 0, 0
    if n < 0 then
      total = refund(s, -n, total)
    else
      if total + (n > 0 and n or 1) > max then allowed = false end
      if n > 0 and max > 0 and (allowed or chargeDenied) then
        total = charge(s, time, n, total, max, period)
      end
    end
    local maxSpent = max - math.max(n, 1)
    if n >= 0 and total > maxSpent then
      retry = -1 -- never
      if maxSpent >= 0 then
        retry = timeOf(s, find(s, reachesHits, total - maxSpent)) + period - now
        if allowed then retry = -2 - retry end -- see the reply in take.lua
      end
    end
    if s.newest >= s.oldest then reset = timeOf(s, s.newest) + period - now end
    return total, reset, retry
  end,

  -- Writes the changes to Redis. Returns an error message if the write failed.
  save = function(s, key, raw, period, ttl)
    local oldest, newest, lastStored = s.oldest, s.newest, s.lastStored
    if newest < oldest then return errorOf(s.storedSize > 0 and redis.pcall('DEL', key)) end
    -- The key must exist between two commands, because Redis rejects writes of missing keys while it moves a hash
    -- slot. So RPUSH appends the new values first, and LTRIM then removes the old values.
    local values, oldValues = {}, 0
    if lastStored < oldest then
      lastStored = oldest - 1
      values[1] = string.format('%d', s.sums[lastStored])
      if s.storedSize > 0 then oldValues = 2 * s.storedSize + 1 end
      s.storedTime = nil
    elseif oldest > 1 or lastStored < s.storedSize then
      redis.call('LTRIM', key, 2 * oldest - 2, 2 * lastStored)
    end
    for i = lastStored + 1, newest do
      values[#values + 1] = string.format('%d', s.times[i])
      values[#values + 1] = string.format('%d', s.sums[i])
    end
    local err = runInParts('RPUSH', key, values)
    if err then return err end
    if oldValues > 0 then redis.call('LTRIM', key, oldValues, -1) end
    if s.times[newest] ~= s.storedTime then
      return errorOf(redis.pcall('PEXPIRE', key, ttl(s.times[newest] + period)))
    end
  end,
}
