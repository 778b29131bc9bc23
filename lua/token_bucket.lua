-- token_bucket computes the same as limit.tokenBucket, which documents the algorithm. Redis stores the state as a
-- string of 24 bytes. The numbers a, b and c are 0 if the bucket is full:
--
--   a  the time at which the bucket is full, in microseconds since 1970, rounded down
--   b  the fraction of a microsecond in this time: b/c microseconds
--   c  max at the last hit
--
-- A span of time has two numbers, us and frac: us + frac/max microseconds with 0 <= frac < max.

local digitBase = 2 ^ 20 -- the base of the digits in the long division of refillTime
local floor = math.floor

-- Returns a / b rounded down, and the remainder.
local function divmod(a, b)
  local r = a % b
  return (a - r) / b, r
end

-- Returns the span in which n tokens refill: n * period / max, where n < 2^33, max <
-- 2^32 and period < 2^49. If the product is maxExactInteger or more, divides digit by digit.
local function refillTime(n, max, period)
  if n == max then return period, 0 end
  if n * period < maxExactInteger then return divmod(n * period, max) end
  local us, remainder = divmod(period, max)
  local highDigit, lowDigit = divmod(n, digitBase)
  local highQuotient, highRemainder = divmod(highDigit * remainder, max)
  local lowQuotient, frac = divmod(highRemainder * digitBase + lowDigit * remainder, max)
  return n * us + highQuotient * digitBase + lowQuotient, frac
end

local function isShorter(us, frac, us2, frac2)
  return us < us2 or us == us2 and frac < frac2
end

local function add(us, frac, us2, frac2, max)
  us, frac = us + us2, frac + frac2
  if frac >= max then return us + 1, frac - max end
  if frac < 0 then return us - 1, frac + max end
  return us, frac
end

local function minSpan(us, frac, us2, frac2)
  if isShorter(us2, frac2, us, frac) then return us2, frac2 end
  return us, frac
end

local function ceil(us, frac)
  return frac > 0 and us + 1 or us
end

-- Returns the number of spent tokens of a bucket that is full after us + frac/max: the smallest n for which
-- refillTime(n) is at least this time.
local function spentTokens(us, frac, max, period)
  local product = us * max + frac
  if product + period < maxExactInteger then return floor((product + period - 1) / period) end
  local function isEnough(n)
    local us2, frac2 = refillTime(n, max, period)
    return not isShorter(us2, frac2, us, frac)
  end
  local n = floor(us * (max / period)) -- rounding makes n wrong by one or two
  while n > 0 and isEnough(n - 1) do n = n - 1 end
  while not isEnough(n) do n = n + 1 end
  return n
end

local function expiry(period, us, frac) return ceil(us, frac) end

-- capacity is negative if the limit has a burst of its own.
local function step(s, now, n, max, period, capacity, chargeDenied)
  local hasBurst = capacity < 0
--[[admit]]
  if max == 0 then
    if n == -maxHits then s.a, s.b, s.c = 0, 0, 0 end -- a reset
    return 0, 0, n < 0 and 0 or -1
  end
  if fullUs < 0 then fullUs, fullFrac = refillTime(capacity, max, period) end
  local maxSpentUs = fullUs + period -- plus fullFrac/max: an empty bucket with a debt of one window

  -- us and frac become the spent time: the time until the bucket is full.
  local us, frac, oldMax = a, b, c
  if oldMax ~= max and frac > 0 and not hasBurst then -- frac is in parts of oldMax
    local remainder
    frac, remainder = refillTime(frac, oldMax, max)
    us, frac = add(us, 0, 0, ceil(frac, remainder), max)
  end
  us = us - now
  if us < 0 then
    us, frac = 0, 0
  elseif oldMax == max then
    us, frac = minSpan(us, frac, maxSpentUs, fullFrac)
  else
    if hasBurst then -- keep the spent tokens, as limit.Limit.timeToFull does
      local carry
      us, carry = refillTime(oldMax, max, us)
      carry, frac = divmod(carry + frac, max)
      us = us + carry
    end
    us, frac = minSpan(us, frac, fullUs, fullFrac)
  end

  local allowed, retry = true, 0
  if n < 0 then
    local us2, frac2 = refillTime(math.min(-n, capacity + max), max, period)
    us, frac = add(us, frac, -us2, -frac2, max)
    if us < 0 then us, frac = 0, 0 end
  else
    local us2, frac2 = refillTime(math.min(math.max(n, 1), capacity + max), max, period)
    us2, frac2 = add(us, frac, us2, frac2, max)
    allowed = n <= capacity and not isShorter(fullUs, fullFrac, us2, frac2)
    if n > 0 and (allowed or chargeDenied) then
      us, frac = minSpan(us2, frac2, maxSpentUs, fullFrac)
    end
  end
  if not allowed then
    retry = -1
    if n <= capacity then
      local us2, frac2 = refillTime(capacity - math.max(n, 1), max, period)
      retry = ceil(add(us, frac, -us2, -frac2, max))
    end
  end
  if us == 0 and frac == 0 then
    s.a, s.b, s.c = 0, 0, 0
  else
    s.a, s.b, s.c = now + us, frac, max
  end
  return spentTokens(us, frac, max, period), ceil(us, frac), retry
end

return packedAlgorithm('<ddd', 24, expiry, step)
