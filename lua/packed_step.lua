-- packed_step is the start of the step of an algorithm with a packed state. Take inserts the two parts of the
-- script NAME_admit here too. If these parts admit the hits, the step ends here.
local a, b, c, format, size = s.a, s.b, s.c
local newA, newB, newC, spent, oldEnd, newEnd, nextWait
--[[prepare]]
--[[hit]]
if newA then
  s.a, s.b, s.c = newA, newB, newC
  return spent, newEnd - now, nextWait and -2 - nextWait or 0
end
