-- sliding_log computes the same as limit.slidingLog, which documents the algorithm.
--
-- Redis stores the log as a list: base, time1, sum1, time2, sum2, … An entry has the time of its newest hit in
-- microseconds, and the sum of all hits up to this entry. base is the sum before the first entry. Because of the sums, a
-- bisection finds an entry, and reads only a few entries.
--
-- s is the state of one key. Its log has the entries s.oldestIndex to s.newestIndex. Redis has the entries 1 to
-- s.storedSize. The entries up to s.unchangedIndex are equal in Redis and in s. s.storedTime is the time of the newest
-- entry in Redis, or nil. s.times[i] and s.sums[i] are nil until fetch reads entry i.

local sumModulus = 2 ^ 40 -- sums are modulo this number, which is larger than the 2^33 hits that a log can have

-- A log with maxExactEntries entries or more combines the hits of one tick into one entry. A window has ticksPerWindow
-- ticks. The numbers are equal to maxExactLogEntries and logTicks in limit/sliding_log.go.
local maxExactEntries, ticksPerWindow = 2048, 2047

-- Reads entry i and the sum of entry i - 1 from Redis. If s already has a value, keeps it, because it may be newer.
local function fetch(s, i)
  local reply = redis.call('LRANGE', s.key, 2 * i - 2, 2 * i)
  s.sums[i - 1] = s.sums[i - 1] or tonumber(reply[1])
  s.times[i] = s.times[i] or tonumber(reply[2])
  s.sums[i] = s.sums[i] or tonumber(reply[3])
end

-- Returns the time of entry i.
local function timeOf(s, i)
  if not s.times[i] then fetch(s, i) end
  return s.times[i]
end

-- Returns the number of hits in the entries from the oldest entry to entry i, or 0 if i is s.oldestIndex - 1.
local function hitsUpTo(s, i)
  if not s.sums[i] then fetch(s, i) end
  return (s.sums[i] - s.sums[s.oldestIndex - 1]) % sumModulus
end

-- Returns the index of the oldest entry for which isReached(s, i, goal) is true, or s.newestIndex + 1. If isReached is true
-- for an entry, it must be true for all newer entries too. The search starts near the oldest entry, where the result
-- usually is.
local function findIndex(s, isReached, goal)
  local lowest, highest, stepLength = s.oldestIndex, s.newestIndex + 1, 1
  while lowest < highest do -- the result is from lowest to highest
    local middle = math.min(lowest + stepLength - 1, math.floor((lowest + highest) / 2))
    if isReached(s, middle, goal) then
      highest = middle
    else
      lowest, stepLength = middle + 1, stepLength * 2
    end
  end
  return lowest
end

local function hasHitsUpTo(s, i, hits) return hitsUpTo(s, i) >= hits end
local function isAfter(s, i, time) return timeOf(s, i) > time end

-- Appends an entry of n hits.
local function push(s, time, n)
  local sum = (s.sums[s.newestIndex] + n) % sumModulus
  s.newestIndex = s.newestIndex + 1
  s.times[s.newestIndex], s.sums[s.newestIndex] = time, sum
end

-- Removes the entries after entry i.
local function removeAfter(s, i)
  s.newestIndex, s.unchangedIndex = i, math.min(s.unchangedIndex, i)
end

-- Returns now or the time of the newest entry, whichever is later. If the clock was set back by more than a period, first
-- moves all hits into one entry at now, as limit.Log.advance does.
local function advance(s, now, period)
  if s.newestIndex < s.oldestIndex or timeOf(s, s.newestIndex) <= now then return now end
  if timeOf(s, s.newestIndex) - now > period then
    local total = hitsUpTo(s, s.newestIndex)
    removeAfter(s, s.oldestIndex - 1)
    push(s, now, total)
  end
  return timeOf(s, s.newestIndex)
end

-- Reports whether hits at this time become a part of the newest entry.
local function joinsNewest(s, time, period)
  if s.newestIndex < s.oldestIndex then return false end
  local newestTime = timeOf(s, s.newestIndex)
  if newestTime == time then return true end
  if s.newestIndex - s.oldestIndex + 1 < maxExactEntries then return false end
  local tick = math.ceil(period / ticksPerWindow)
  return newestTime - newestTime % tick == time - time % tick
end

-- Adds n hits, and drops the oldest entries that no decision needs. Returns the new total.
local function charge(s, time, n, total, maxHits, period)
  if joinsNewest(s, time, period) then
    local earlierTotal = hitsUpTo(s, s.newestIndex - 1)
    n, total = n + total - earlierTotal, earlierTotal
    removeAfter(s, s.newestIndex - 1)
  end
  n = math.min(n, maxHits)
  if total + n > maxHits then
    s.oldestIndex = findIndex(s, hasHitsUpTo, total + n - maxHits + 1)
    total = hitsUpTo(s, s.newestIndex)
  end
  push(s, time, n)
  return total + n
end

-- Removes up to n hits from the newest entries. Returns the new total.
local function refund(s, n, total)
  local newTotal = math.max(total - n, 0)
  if newTotal == 0 then
    removeAfter(s, s.oldestIndex - 1)
  elseif newTotal < total then
    local i = findIndex(s, hasHitsUpTo, newTotal)
    local excess = hitsUpTo(s, i) - newTotal
    removeAfter(s, i)
    if excess > 0 then
      s.sums[i] = (s.sums[i] - excess) % sumModulus
      s.unchangedIndex = math.min(s.unchangedIndex, i - 1)
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
      oldestIndex = 1, newestIndex = size, unchangedIndex = size, storedSize = size,
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

  -- Decides n hits. Returns the numbers spent, reset and retry of the reply of take. max is the number of hits that a window
  -- admits. The unnamed argument is the capacity, which a log does not use.
  step = function(s, now, n, max, period, _, chargeDenied)
    local time = advance(s, now, period)
    if s.newestIndex >= s.oldestIndex and timeOf(s, s.oldestIndex) + period <= time then
      s.oldestIndex = findIndex(s, isAfter, time - period)
    end
    local total = hitsUpTo(s, s.newestIndex)

    local allowed, retry, reset = true, 0, 0
    if n < 0 then
      total = refund(s, -n, total)
    else
      if total + (n > 0 and n or 1) > max then allowed = false end
      if n > 0 and max > 0 and (allowed or chargeDenied) then
        total = charge(s, time, n, total, max, period)
      end
    end
    local maxSpent = max - math.max(n, 1) -- the next n hits, at least 1, pass only if the log has at most maxSpent hits
    if n >= 0 and total > maxSpent then
      retry = -1 -- never
      if maxSpent >= 0 then
        retry = timeOf(s, findIndex(s, hasHitsUpTo, total - maxSpent)) + period - now
        if allowed then retry = -2 - retry end -- the form in which an admitted hit has its retry time (take.lua)
      end
    end
    if s.newestIndex >= s.oldestIndex then reset = timeOf(s, s.newestIndex) + period - now end
    return total, reset, retry
  end,

  -- Writes the changes to Redis. Returns an error message if the write failed. A log does not need the stored value.
  save = function(s, key, _, period, ttl)
    local oldest, newest, unchanged = s.oldestIndex, s.newestIndex, s.unchangedIndex
    if newest < oldest then return errorOf(s.storedSize > 0 and redis.pcall('DEL', key)) end
    -- The key must exist between two commands, because Redis rejects writes of missing keys while it moves a hash
    -- slot. So RPUSH appends the new values first, and LTRIM then removes the old values.
    local values, oldValueCount = {}, 0
    if unchanged < oldest then
      unchanged = oldest - 1
      values[1] = string.format('%d', s.sums[unchanged])
      if s.storedSize > 0 then oldValueCount = 2 * s.storedSize + 1 end
      s.storedTime = nil
    elseif oldest > 1 or unchanged < s.storedSize then
      redis.call('LTRIM', key, 2 * oldest - 2, 2 * unchanged)
    end
    for i = unchanged + 1, newest do
      values[#values + 1] = string.format('%d', s.times[i])
      values[#values + 1] = string.format('%d', s.sums[i])
    end
    local err = runInParts('RPUSH', key, values)
    if err then return err end
    if oldValueCount > 0 then redis.call('LTRIM', key, oldValueCount, -1) end
    if s.times[newest] ~= s.storedTime then
      return errorOf(redis.pcall('PEXPIRE', key, ttl(s.times[newest] + period)))
    end
  end,
}
