-- first_hit_window does what limit.firstHitWindow does and documents.
--
-- State: a is the window's start in microseconds, b its count. The state is zero if the
-- count is 0. It is stored packed in 16 bytes.

local maxHits = 2 ^ 34 -- a count does not grow further

local function expiry(period, start) return start + period end

local function step(s, now, n, max, period, capacity, chargeDenied)
  local start, count = s.a, s.b
  if count == 0 or now >= start + period then
    start, count = now, 0
  elseif start - now > period then
    start = now
  end
  local left = start + period - now

  local allowed, retry = true, 0
  if n < 0 then
    count = math.max(count + n, 0)
  elseif n == 0 then
    allowed = count <= max
  else
    allowed = count + n <= max
    if allowed or chargeDenied then count = math.min(count + n, maxHits) end
  end
  if not allowed then
    retry = n > max and -1 or left
  end
  if count == 0 then
    s.a, s.b = 0, 0
    return 0, 0, retry
  end
  s.a, s.b = start, count
  return count, left, retry
end

return packed('<dd', 16, expiry, step)
