-- sliding_window computes the same as limit.slidingWindow, which documents the algorithm and
-- the state a, b, c. The state is stored packed in 24 bytes. It is zero if both counts are 0.

local maxTicks = 2 ^ 19

-- For whole a < 2^53 the rounded quotient a / b never reaches the next whole number, so
-- math.floor is exact.
local floor = math.floor
local function ceilDiv(a, b) return floor((a + b - 1) / b) end

local function expiry(period, start, current)
  return start + (current > 0 and 2 * period or period)
end

-- Returns the earliest time at which at most maxSpent hits are spent. The window has ticks of
-- tick microseconds.
local function retryAt(start, current, previous, maxSpent, period, tick, ticks)
  if current > maxSpent then -- not in the current window
    start, current, previous = start + period, 0, current
  end
  local coveredTicks = ticks
  if previous > 0 then
    coveredTicks = math.min(floor((maxSpent - current) * ticks / previous), ticks)
  end
  return start + math.min((ticks - coveredTicks) * tick, period)
end

local cachedPeriod, tick, ticks -- a window and its ticks, which most hits of a batch have

local function step(s, now, n, max, period, capacity, chargeDenied)
  if period ~= cachedPeriod then
    cachedPeriod, tick = period, ceilDiv(period, maxTicks)
    ticks = ceilDiv(period, tick)
  end
  local start, current, previous = s.a, s.b, s.c
  local aligned = now - now % period
  if aligned == start + period then
    start, current, previous = aligned, 0, current
  elseif aligned > start then
    start, current, previous = aligned, 0, 0
  elseif start - now > period then
    start = aligned
  end
  local coveredTicks = ticks -- of the previous window
  if now > start then coveredTicks = ticks - floor((now - start) / tick) end
  local previousHits = previous > 0 and ceilDiv(previous * coveredTicks, ticks) or 0

  local allowed, retry, reset = true, 0, 0
  if n < 0 then
    current = current + n
    if current < 0 then
      previous = math.max(previous + current, 0)
      current = 0
    end
    previousHits = ceilDiv(previous * coveredTicks, ticks)
  else
    if current + previousHits + (n > 0 and n or 1) > max then allowed = false end
    if allowed then
      current = current + n
    elseif chargeDenied then
      current = math.max(current, math.min(current + n, 2 * max - previousHits)) -- bounds the debt
    end
  end
  local needed = n > 0 and n or 1
  if n >= 0 and current + previousHits + needed > max then
    retry = -1
    if needed <= max then
      retry = retryAt(start, current, previous, max - needed, period, tick, ticks) - now
      if allowed then retry = -2 - retry end
    end
  end
  if current == 0 and previous == 0 then
    s.a, s.b, s.c = 0, 0, 0
  else
    s.a, s.b, s.c = start, current, previous
    reset = expiry(period, start, current) - now
  end
  return current + previousHits, reset, retry
end

return packedAlgorithm('<ddd', 24, expiry, step)
