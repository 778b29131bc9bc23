-- fixed_window computes the same as limit.fixedWindow, which documents the algorithm and
-- the state a, b. The state is stored packed in 16 bytes. It is zero if the count is 0.

local function expiry(period, start) return start + period end

local function step(s, now, n, max, period, capacity, chargeDenied)
  local start, count = s.a, s.b
  local aligned = now - now % period
  if aligned > start then
    start, count = aligned, 0
  elseif start - now > period then
    start = aligned
  end
  local untilEnd, retry = start + period - now, 0
  count, retry = countHits(count, n, max, untilEnd, chargeDenied)
  s.a, s.b = count > 0 and start or 0, count
  return count, untilEnd, retry
end

return packed('<dd', 16, expiry, step)
