-- fixed_window decides as limit.Limit.CountHits does. The key names a window, so each window has a counter of its own. The
-- value of the key is the count: a whole number, which INCRBY and GET understand.
--
-- period is the time until the window of the key ends, in microseconds. The service knows this time, because it has
-- named the window.

-- The time from the end of a window until its key expires, in microseconds. Meanwhile a late hit can still charge the window.
local margin = 10000000

local function step(s, now, n, max, period, capacity, chargeDenied)
  local retry
  s.count, retry = countHits(s.count, n, max, period, chargeDenied)
  s.expiry = now + period + margin
  return s.count, period, retry
end

return stringAlgorithm({
  step = step,

  -- Sets s to the count stored in raw. Returns an error message if raw is no count.
  read = function(s, raw)
    if not raw then
      s.count, s.stored = 0, 0
      return
    end
    if not raw:find('^%d+$') then return 'WRONGTYPE the key holds another string' end
    s.stored = tonumber(raw)
    s.count = math.min(s.stored, maxHits)
  end,

  -- Returns the change of the count and the end of the window, or nil without a change.
  encode = function(s)
    if s.count == s.stored then return nil end
    return string.format('%d', s.count - s.stored), s.expiry
  end,

  -- Writes what encode returned. The key stays until its expiry, even with a count of 0. So a replica that
  -- has seen the key can use INCRBY without setting a time to live.
  write = function(key, raw, value, newExpiry, ttl)
    if not raw then return redis.pcall('SET', key, value, 'PX', ttl(newExpiry), 'NX') end
    return redis.pcall('INCRBY', key, value)
  end,
})
