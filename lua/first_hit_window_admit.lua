-- first_hit_window_admit is the part of first_hit_window for hits that are admitted.
format, size = '<dd', 16
--[[hit]]
local start, count = a, b
if count == 0 or now >= start + period then
  start, count = now, 0
elseif start - now > period then
  start = now
end
if n > 0 and count + n <= max then
  newA, newB, newC = start, count + n, 0
  spent, oldEnd, newEnd = newB, a + period, start + period
end
