-- sliding_window computes the same as limit.slidingWindow, which documents the algorithm and
-- the state a, b, c. Redis stores the state as a string of 24 bytes. a, b and c are 0 if both counts are 0.

local function expiry(period, start, current)
  return start + (current > 0 and 2 * period or period)
end

local function step(s, now, n, max, period, capacity, chargeDenied)
--[[admit]]
  local neededHits = n > 0 and n or 1
  local retry, reset = 0, 0
  if n < 0 then
    current = current + n
    if current < 0 then
      previous = math.max(previous + current, 0)
      current = 0
    end
    previousHits = floor((previous * coveredTicks + ticks - 1) / ticks)
  else
    local allowed = current + previousHits + neededHits <= max
    if n > 0 and chargeDenied then
      current = math.max(current, math.min(current + n, 2 * max - previousHits)) -- bounds the debt
    end
    if not allowed then
      retry = -1
      if neededHits <= max then retry = retryAt(start, current, previous, max - neededHits, period, tick, ticks) - now end
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
