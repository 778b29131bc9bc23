-- sliding_window_admit is the part of sliding_window for hits that are admitted.
--
-- math.floor(a / b) is exact for whole numbers a < 2^53, because the rounded quotient a / b never
-- reaches the next whole number.
format, size = '<ddd', 24
local floor, maxTicks = math.floor, 2 ^ 19
local tick = floor((period + maxTicks - 1) / maxTicks)
local ticks = floor((period + tick - 1) / tick)
local alignedStart = now - now % period

-- Returns the earliest time at which the estimated hits are at most maxSpent. The function gets all numbers as arguments,
-- because a function that uses locals of this file would make each hit 8 % slower.
local function retryAt(start, currentCount, previousCount, maxSpent, period, tick, ticks)
  if currentCount > maxSpent then -- the current window ends before the hits pass
    start, currentCount, previousCount = start + period, 0, currentCount
  end
  local coveredTicks = ticks
  if previousCount > 0 then
    coveredTicks = math.min(math.floor((maxSpent - currentCount) * ticks / previousCount), ticks)
  end
  return start + math.min((ticks - coveredTicks) * tick, period)
end
--[[hit]]
local start, currentCount, previousCount = a, b, c
if alignedStart == start + period then
  start, currentCount, previousCount = alignedStart, 0, currentCount
elseif alignedStart > start then
  start, currentCount, previousCount = alignedStart, 0, 0
elseif start - now > period then
  start = alignedStart
end
local coveredTicks, previousHits = ticks, 0 -- the ticks of the previous window that still count, and the hits in these ticks
if previousCount > 0 then
  if now > start then coveredTicks = ticks - floor((now - start) / tick) end
  previousHits = floor((previousCount * coveredTicks + ticks - 1) / ticks)
end
spent = currentCount + n + previousHits
if n > 0 and spent <= max then
  newA, newB, newC = start, currentCount + n, previousCount
  oldEnd, newEnd = a + (b > 0 and 2 * period or period), start + 2 * period
  if spent + n > max then nextWait = retryAt(start, newB, previousCount, max - n, period, tick, ticks) - now end
end
