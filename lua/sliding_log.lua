-- sliding_log does what limit.slidingLog does and documents.
--
-- The log is stored as a list: base, time1, sum1, time2, sum2, … An entry is the time of its
-- newest hit in microseconds, and the sum of all hits up to this entry. base is the sum
-- before the first entry. The hits of any run of entries are one subtraction, and
-- bisection finds an entry without a walk through the log. Sums wrap at 2^40, far above
-- what a log can hold (2^33).
--
-- State: entries first to last. Entries up to kept are stored as they are. size is the
-- number of stored entries. times[i] and sums[i] are fetched at their first use.

local wrap = 2 ^ 40

local exactEntries, ticks = 2048, 2047 -- as limit's exactLogEntries and logTicks

-- Fetches entry i. It does not overwrite what has changed since entry i was stored.
local function fetch(s, i)
  local stored = redis.call('LRANGE', s.key, 2 * i - 2, 2 * i)
  s.sums[i - 1] = s.sums[i - 1] or tonumber(stored[1])
  s.times[i] = s.times[i] or tonumber(stored[2])
  s.sums[i] = s.sums[i] or tonumber(stored[3])
end

local function timeOf(s, i)
  if not s.times[i] then fetch(s, i) end
  return s.times[i]
end

-- Returns the hits of the entries from first to i. If i is first - 1, that is 0.
local function hitsUpTo(s, i)
  if not s.sums[i] then fetch(s, i) end
  return (s.sums[i] - s.sums[s.first - 1]) % wrap
end

-- Returns the first entry i with reached(s, i, goal), or last + 1. All entries after i
-- reach the goal too. Usually i is near the front.
local function find(s, reached, goal)
  local low, high, stride = s.first, s.last + 1, 1
  while low < high do -- i is in low..high
    local probe = math.min(low + stride - 1, math.floor((low + high) / 2))
    if reached(s, probe, goal) then
      high = probe
    else
      low, stride = probe + 1, stride * 2
    end
  end
  return low
end

local function hitsReach(s, i, goal) return hitsUpTo(s, i) >= goal end
local function isAfter(s, i, goal) return timeOf(s, i) > goal end

local function push(s, time, n)
  local sum = (s.sums[s.last] + n) % wrap
  s.last = s.last + 1
  s.times[s.last], s.sums[s.last] = time, sum
end

local function cut(s, last)
  s.last, s.kept = last, math.min(s.kept, last)
end

-- Does what hitLog.advance does.
local function advance(s, now, period)
  if s.last < s.first or timeOf(s, s.last) <= now then return now end
  if timeOf(s, s.last) - now > period then
    local total = hitsUpTo(s, s.last)
    cut(s, s.first - 1)
    push(s, now, total)
  end
  return timeOf(s, s.last)
end

-- Reports whether hits at time join the newest entry.
local function joins(s, time, period)
  if s.last < s.first then return false end
  local newest = timeOf(s, s.last)
  if newest == time then return true end
  if s.last - s.first + 1 < exactEntries then return false end
  local tick = math.ceil(period / ticks)
  return newest - newest % tick == time - time % tick
end

-- Does what hitLog.charge does. Returns the new total.
local function charge(s, time, n, total, maxHits, period)
  if joins(s, time, period) then
    local others = hitsUpTo(s, s.last - 1)
    n, total = n + total - others, others
    cut(s, s.last - 1)
  end
  n = math.min(n, maxHits)
  if total + n > maxHits then
    s.first = find(s, hitsReach, total + n - maxHits + 1)
    total = hitsUpTo(s, s.last)
  end
  push(s, time, n)
  return total + n
end

-- Does what hitLog.refund does. Returns the new total.
local function refund(s, n, total)
  local left = math.max(total - n, 0)
  if left == 0 then
    cut(s, s.first - 1)
  elseif left < total then
    local i = find(s, hitsReach, left)
    local excess = hitsUpTo(s, i) - left
    cut(s, i)
    if excess > 0 then
      s.sums[i] = (s.sums[i] - excess) % wrap
      s.kept = math.min(s.kept, i - 1)
    end
  end
  return left
end

return {
  -- Returns the state of key. The state has err if the value of key is no log.
  open = function(key)
    local size = redis.pcall('LLEN', key)
    if type(size) == 'table' then return { err = size.err } end
    local foreign = { err = 'WRONGTYPE the key holds another list' }
    if size == 1 or size > 0 and size % 2 == 0 then return foreign end
    size = (size - size % 2) / 2
    local s = {
      key = key, times = {}, sums = {},
      first = 1, last = size, kept = size, size = size,
    }
    if size == 0 then
      s.sums[0] = 0
    else
      fetch(s, 1)
      if size > 1 then fetch(s, size) end
      s.newest = s.times[size]
      if not (s.sums[0] and s.times[1] and s.sums[1] and s.newest and s.sums[size]) then return foreign end
    end
    return s
  end,

  copy = function(s)
    local c = {}
    for k, v in pairs(s) do c[k] = v end
    c.times, c.sums = {}, {}
    for k, v in pairs(s.times) do c.times[k] = v end
    for k, v in pairs(s.sums) do c.sums[k] = v end
    return c
  end,

  step = function(s, now, n, max, period, capacity, chargeDenied)
    local time = advance(s, now, period)
    if s.last >= s.first and timeOf(s, s.first) + period <= time then
      s.first = find(s, isAfter, time - period)
    end
    local total = hitsUpTo(s, s.last)

    local allowed, retry, reset = true, 0, 0
    if n < 0 then
      total = refund(s, -n, total)
    else
      if total + (n > 0 and n or 1) > max then allowed = false end
      if n > 0 and max > 0 and (allowed or chargeDenied) then
        total = charge(s, time, n, total, max, period)
      end
    end
    if not allowed then
      local maxSpent = max - math.max(n, 1)
      retry = -1
      if maxSpent >= 0 then
        retry = timeOf(s, find(s, hitsReach, total - maxSpent)) + period - now
      end
    end
    if s.last >= s.first then reset = timeOf(s, s.last) + period - now end
    return total, reset, retry
  end,

  -- Writes what has changed. Returns an error message if the write failed.
  save = function(s, key, raw, period, ttl)
    local first, last, kept = s.first, s.last, s.kept
    local reply
    if last < first then
      if s.size > 0 then reply = redis.pcall('DEL', key) end
      return type(reply) == 'table' and reply.err
    end
    -- The key must not be absent between two commands. If its slot is being moved, an
    -- absent key can't be written.
    local values, obsolete = {}, 0
    if kept < first then
      kept = first - 1
      values[1] = string.format('%d', s.sums[kept])
      if s.size > 0 then obsolete = 2 * s.size + 1 end
      s.newest = nil
    elseif first > 1 or kept < s.size then
      redis.call('LTRIM', key, 2 * first - 2, 2 * kept)
    end
    for i = kept + 1, last do
      values[#values + 1] = string.format('%d', s.times[i])
      values[#values + 1] = string.format('%d', s.sums[i])
    end
    for i = 1, #values, 1000 do
      reply = redis.pcall('RPUSH', key, unpack(values, i, math.min(i + 999, #values)))
      if type(reply) == 'table' then return reply.err end
    end
    if obsolete > 0 then redis.call('LTRIM', key, obsolete, -1) end
    if s.times[last] ~= s.newest then
      reply = redis.pcall('PEXPIRE', key, ttl(s.times[last] + period))
    end
    return type(reply) == 'table' and reply.err
  end,
}
