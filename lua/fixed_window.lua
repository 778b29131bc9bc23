-- fixed_window does what limit.fixedWindow does and documents.
--
-- State: a is the window's start in microseconds, b its count. The state is zero if the
-- count is 0. It is stored packed in 16 bytes.

local maxHits = 2 ^ 34 -- a count does not grow further

local function expiry(period, start) return start + period end

local function step(s, now, n, max, period, capacity, chargeDenied)
  local start, count = s.a, s.b
  local aligned = now - now % period
  if aligned > start then
    start, count = aligned, 0
  elseif start - now > period then
    start = aligned
  end
  local left = start + period - now

  local allowed, retry = true, 0
  if n < 0 then
    count = count + n
    if count < 0 then count = 0 end
  elseif n == 0 then
    if count > max then allowed = false end
  else
    if count + n > max then allowed = false end
    if allowed or chargeDenied then
      count = count + n
      if count > maxHits then count = maxHits end
    end
  end
  if not allowed then
    retry = n > max and -1 or left
  end
  s.a, s.b = count > 0 and start or 0, count
  return count, left, retry
end

return packed('<dd', 16, expiry, step)
