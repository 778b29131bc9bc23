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
  if spent + n > max then -- like retryAt of sliding_window
    local from, kept, expiring = start, current, previous
    if kept > max - n then from, kept, expiring = start + period, 0, current end
    local covered = ticks
    if expiring > 0 then covered = math.min(floor((max - n - kept) * ticks / expiring), ticks) end
    nextAfter = from + math.min((ticks - covered) * tick, period) - now
  end
  newA, newB, newC = start, current, previous
  oldEnd, newEnd = a + (b > 0 and 2 * period or period), start + 2 * period
end
