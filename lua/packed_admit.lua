-- packed_admit admits the hits from first to last, if their state is packed. The hits have one limit, and
-- a counter each. It decides as the step of the algorithm, and writes as packed. It is a loop without
-- functions, because functions would take a third of the time of a hit.
--
-- The script NAME_admit of an algorithm is inserted here. Its first part prepares the limit, and sets
-- format and size. Its second part decides n hits on the state a, b, c. If it admits the hits, it sets
-- newA, newB, newC, spent, and the times at which the old and the new state are forgotten.
local format, size
--[[prepare]]
for i = first, last do
  local raw, n = storedValues[i], args[hitOffset + 2 * i]
  local a, b, c, isValid = 0, 0, 0, not raw
  if raw and #raw == size then
    a, b, c = unpack(format, raw)
    isValid = a > 0 and a < exact and b >= 0 and b < exact and a % 1 == 0 and b % 1 == 0
  end
  local newA, newB, newC, spent, oldEnd, newEnd
  if isValid and n > 0 then
    --[[hit]]
  end
  if newA then
    local replyEnd = 3 * i -- the place of the last number of hit i
    reply[replyEnd - 2], reply[replyEnd - 1], reply[replyEnd] = spent, newEnd - now, 0
    values[i] = pack(format, newA, newB, newC)
    newEnd = newEnd + -newEnd % expiryStep
    if not raw or newEnd ~= oldEnd + -oldEnd % expiryStep then expiries[i] = newEnd end
  else
    undecided = true
  end
end
