-- first_hit_window computes the same as limit.firstHitWindow, which documents the algorithm and
-- the state a, b. The state is stored packed in 16 bytes. It is zero if the count is 0.

local function expiry(period, start) return start + period end

local function step(s, now, n, max, period, capacity, chargeDenied)
--[[admit]]
  local untilEnd, retry = start + period - now, 0
  count, retry = countHits(count, n, max, untilEnd, chargeDenied)
  if count == 0 then start, untilEnd = 0, 0 end
  s.a, s.b = start, count
  return count, untilEnd, retry
end

return packedAlgorithm('<dd', 16, expiry, step)
