-- sliding_window: limit.slidingWindow, which says what it does and why.
--
-- State: a, the current window's start in microseconds; b, its count; c, the
-- last window's count. Zero once both counts are 0. Stored packed, 24 bytes.

local maxTicks = 2 ^ 19

-- Division of whole numbers. For a < 2^53 the rounded quotient never reaches the
-- next whole number, so that math.floor is exact.
local floor = math.floor
local function ceilDiv(a, b) return floor((a + b - 1) / b) end

local function ends(period, start, cur)
  return start + (cur > 0 and 2 * period or period)
end

-- The earliest time at which at most spare of cur and prev counts.
local function fit(start, cur, prev, spare, period, tick, ticks)
  if cur > spare then -- not before the current window is itself the last one
    start, cur, prev = start + period, 0, cur
  end
  local share = ticks
  if prev > 0 then
    share = math.min(floor((spare - cur) * ticks / prev), ticks)
  end
  return start + math.min((ticks - share) * tick, period)
end

local function step(s, now, n, max, period, capacity, chargeDenied)
  local tick = ceilDiv(period, maxTicks)
  local ticks = ceilDiv(period, tick)
  local start, cur, prev = s.a, s.b, s.c
  local aligned = now - now % period
  if aligned == start + period then
    start, cur, prev = aligned, 0, cur
  elseif aligned > start then
    start, cur, prev = aligned, 0, 0
  elseif start - now > period then
    start = aligned
  end
  local share = ticks
  if now > start then share = ticks - floor((now - start) / tick) end
  local carried = ceilDiv(prev * share, ticks)

  local allowed, retry, reset = true, 0, 0
  if n < 0 then
    cur = cur + n
    if cur < 0 then
      prev = math.max(prev + cur, 0)
      cur = 0
    end
    carried = ceilDiv(prev * share, ticks)
  elseif n == 0 then
    if cur + carried + 1 > max then allowed = false end
  else
    if cur + carried + n > max then allowed = false end
    if allowed or chargeDenied then
      cur = math.max(cur, math.min(cur + n, 2 * max - carried)) -- the debt is bounded
    end
  end
  if not allowed then
    local spare = max - math.max(n, 1)
    retry = -1
    if spare >= 0 then
      retry = fit(start, cur, prev, spare, period, tick, ticks) - now
    end
  end
  if cur == 0 and prev == 0 then
    s.a, s.b, s.c = 0, 0, 0
  else
    s.a, s.b, s.c = start, cur, prev
    reset = ends(period, start, cur) - now
  end
  return cur + carried, reset, retry
end

return packed('<ddd', 24, ends, step)
