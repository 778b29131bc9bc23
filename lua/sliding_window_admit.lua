-- sliding_window_admit is the part of sliding_window for hits that are admitted.
format, size = '<ddd', 24
local floor, maxTicks = math.floor, 2 ^ 19
local tick = floor((period + maxTicks - 1) / maxTicks)
local ticks = floor((period + tick - 1) / tick)
local aligned = now - now % period
--[[hit]]
local start, current, previous = a, b, c
if aligned == start + period then
  start, current, previous = aligned, 0, current
elseif aligned > start then
  start, current, previous = aligned, 0, 0
elseif start - now > period then
  start = aligned
end
current = current + n
spent = current
if previous > 0 then
  local coveredTicks = ticks
  if now > start then coveredTicks = ticks - floor((now - start) / tick) end
  spent = current + floor((previous * coveredTicks + ticks - 1) / ticks)
end
if spent <= max then
  newA, newB, newC = start, current, previous
  oldEnd, newEnd = a + (b > 0 and 2 * period or period), start + 2 * period
end
