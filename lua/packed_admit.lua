-- packed_admit admits the hits from firstHit to lastHit. All these hits have the same limit, and each hit has a counter of
-- its own with a packed state. The loop decides as the step of the algorithm does, and stores the state as
-- packedAlgorithm does. It calls no functions for this, because the calls would take a third of the time of a hit.
--
-- Take inserts the two parts of the script NAME_admit here. The first part prepares the limit, and sets format and
-- size. The second part decides n hits on the state a, b, c. If n is above 0 and the limit admits the hits, the second part
-- sets newA, newB, newC and spent. It also sets oldEnd and newEnd, the times at which the old and the new state are
-- forgotten, and can set nextWait, the time until the same hits pass once more.
needsSlowPath = false
local format, size
--[[prepare]]
for i = firstHit, lastHit do
  local raw, n = storedValues[i], args[hitOffset + 2 * i]
  local a, b, c, isValid = 0, 0, 0, not raw
  if raw and #raw == size then
    a, b, c = unpackNumbers(format, raw)
    isValid = a > 0 and a < maxExactInteger and b >= 0 and b < maxExactInteger and a % 1 == 0 and b % 1 == 0
  end
  local newA, newB, newC, spent, oldEnd, newEnd, nextWait
  if isValid then
    --[[hit]]
  end
  if newA then
    local replyEnd = 3 * i -- the index of the last number of hit i in the reply
    reply[replyEnd - 2], reply[replyEnd - 1], reply[replyEnd] = spent, newEnd - now, nextWait and -2 - nextWait or 0
    values[i] = packNumbers(format, newA, newB, newC)
    newEnd = newEnd + -newEnd % expiryStep
    if not raw or newEnd ~= oldEnd + -oldEnd % expiryStep then expiries[i] = newEnd end
  else
    needsSlowPath = true
  end
end
