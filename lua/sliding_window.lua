-- sliding_window does what limit.slidingWindow does and documents. The state is stored
-- packed in 24 bytes. It is zero if both counts are 0.

local maxTicks = 2 ^ 19

-- For whole a < 2^53 the rounded quotient a / b never reaches the next whole number, so
-- math.floor is exact.
local floor = math.floor
local function ceilDiv(a, b) return floor((a + b - 1) / b) end

local function expiry(period, start, cur)
  return start + (cur > 0 and 2 * period or period)
end

-- Returns the earliest time at which at most maxSpent hits are spent.
local function retryAt(start, cur, prev, maxSpent, period, tick, ticks)
  if cur > maxSpent then -- not before the current window becomes the previous one
    start, cur, prev = start + period, 0, cur
  end
  local share = ticks
  if prev > 0 then
    share = math.min(floor((maxSpent - cur) * ticks / prev), ticks)
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
  local fading = ceilDiv(prev * share, ticks)

  local allowed, retry, reset = true, 0, 0
  if n < 0 then
    cur = cur + n
    if cur < 0 then
      prev = math.max(prev + cur, 0)
      cur = 0
    end
    fading = ceilDiv(prev * share, ticks)
  else
    if cur + fading + (n > 0 and n or 1) > max then allowed = false end
    if allowed or chargeDenied then
      cur = math.max(cur, math.min(cur + n, 2 * max - fading)) -- bounds the debt
    end
  end
  if not allowed then
    local maxSpent = max - math.max(n, 1)
    retry = -1
    if maxSpent >= 0 then
      retry = retryAt(start, cur, prev, maxSpent, period, tick, ticks) - now
    end
  end
  if cur == 0 and prev == 0 then
    s.a, s.b, s.c = 0, 0, 0
  else
    s.a, s.b, s.c = start, cur, prev
    reset = expiry(period, start, cur) - now
  end
  return cur + fading, reset, retry
end

return packed('<ddd', 24, expiry, step)
