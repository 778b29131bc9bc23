-- first_hit_window computes the same as limit.firstHitWindow, which documents the algorithm and
-- the state a, b. Redis stores the state as a string of 16 bytes. a and b are 0 if the count is 0.

local function expiry(period, start) return start + period end

local function step(s, now, n, max, period, capacity, chargeDenied)
--[[admit]]
  local timeLeft, retry = start + period - now, 0
  count, retry = countHits(count, n, max, timeLeft, chargeDenied)
  if count == 0 then start, timeLeft = 0, 0 end
  s.a, s.b = start, count
  return count, timeLeft, retry
end

return packedAlgorithm('<dd', 16, expiry, step)
