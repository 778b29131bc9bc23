-- sliding_window computes the same as limit.slidingWindow, which documents the algorithm and
-- the state a, b, c. Redis stores the state as a string of 24 bytes. a, b and c are 0 if both counts are 0.

local function expiry(period, start, currentCount)
  return start + (currentCount > 0 and 2 * period or period)
end

local function step(s, now, n, max, period, capacity, chargeDenied)
--[[admit]]
  local neededHits = n > 0 and n or 1
  local retry, reset = 0, 0
  if n < 0 then
    currentCount = currentCount + n
    if currentCount < 0 then
      previousCount = math.max(previousCount + currentCount, 0)
      currentCount = 0
    end
    previousHits = floor((previousCount * coveredTicks + ticks - 1) / ticks)
  else
    local allowed = currentCount + previousHits + neededHits <= max
    if n > 0 and chargeDenied then
      currentCount = math.max(currentCount, math.min(currentCount + n, 2 * max - previousHits)) -- bounds the debt
    end
    if not allowed then
      retry = -1
      if neededHits <= max then retry = retryAt(start, currentCount, previousCount, max - neededHits, period, tick, ticks) - now end
    end
  end
  if currentCount == 0 and previousCount == 0 then
    s.a, s.b, s.c = 0, 0, 0
  else
    s.a, s.b, s.c = start, currentCount, previousCount
    reset = expiry(period, start, currentCount) - now
  end
  return currentCount + previousHits, reset, retry
end

return packedAlgorithm('<ddd', 24, expiry, step)
