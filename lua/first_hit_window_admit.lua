-- first_hit_window_admit is the part of first_hit_window for hits that are admitted.
format, size = '<dd', 16
--[[hit]]
local start, count = a, b
if count == 0 or now >= start + period then
  start, count = now, 0
elseif start - now > period then
  start = now
end
spent = count + n
if spent <= max then
  newA, newB, newC = start, spent, 0
  oldEnd, newEnd = a + period, start + period
end
