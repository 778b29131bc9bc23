-- sliding_window_admit is the part of sliding_window for hits that are admitted.
--
-- For whole a < 2^53 the rounded quotient a / b never reaches the next whole number, so
-- math.floor is exact.
format, size = '<ddd', 24
local floor, maxTicks = math.floor, 2 ^ 19
local tick = floor((period + maxTicks - 1) / maxTicks)
local ticks = floor((period + tick - 1) / tick)
local aligned = now - now % period

-- Returns the earliest time at which at most maxSpent hits are spent. The function uses no local of this
-- part: with such locals, Lua would take 8 % more time for a hit.
local function retryAt(start, current, previous, maxSpent, period, tick, ticks)
  if current > maxSpent then -- not in the current window
    start, current, previous = start + period, 0, current
  end
  local coveredTicks = ticks
  if previous > 0 then
    coveredTicks = math.min(math.floor((maxSpent - current) * ticks / previous), ticks)
  end
  return start + math.min((ticks - coveredTicks) * tick, period)
end
--[[hit]]
local start, current, previous = a, b, c
if aligned == start + period then
  start, current, previous = aligned, 0, current
elseif aligned > start then
  start, current, previous = aligned, 0, 0
elseif start - now > period then
  start = aligned
end
local coveredTicks, previousHits = ticks, 0 -- of the previous window
if previous > 0 then
  if now > start then coveredTicks = ticks - floor((now - start) / tick) end
  previousHits = floor((previous * coveredTicks + ticks - 1) / ticks)
end
spent = current + n + previousHits
if n > 0 and spent <= max then
  newA, newB, newC = start, current + n, previous
  oldEnd, newEnd = a + (b > 0 and 2 * period or period), start + 2 * period
  if spent + n > max then nextAfter = retryAt(start, newB, previous, max - n, period, tick, ticks) - now end
end
