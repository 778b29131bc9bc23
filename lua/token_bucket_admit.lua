-- token_bucket_admit is the part of token_bucket for hits that are admitted. It leaves hits to
-- token_bucket if a product is maxExactInteger or more.
format, size = '<ddd', 24
capacity = math.abs(capacity)
local fullUs, fullFrac = -1, 0 -- fullUs + fullFrac/max is the time to fill the bucket; -1 if not known
local fillProduct = capacity * period
if max > 0 and capacity == max then
  fullUs = period
elseif max > 0 and fillProduct < maxExactInteger then
  fullFrac = fillProduct % max
  fullUs = (fillProduct - fullFrac) / max
end
--[[hit]]
local product = n * period
if n > 0 and product < maxExactInteger and (c == max or c == 0) then
  -- us + frac/max is the spent time: the time until the bucket is full.
  local us, frac, costFrac = a - now, b, product % max
  if us < 0 then us, frac = 0, 0 end
  us, frac = us + (product - costFrac) / max, frac + costFrac
  if frac >= max then us, frac = us + 1, frac - max end
  local numerator = us * max + frac + period - 1
  if numerator < maxExactInteger and (us < fullUs or us == fullUs and frac <= fullFrac) then
    newA, newB, newC = now + us, frac, max
    spent = (numerator - numerator % period) / period
    oldEnd, newEnd = b > 0 and a + 1 or a, frac > 0 and newA + 1 or newA
  end
end
