-- fixed_window decides as limit.Limit.CountHits. The state is the count of one window. The key
-- names the window, so each window has a counter of its own. Its value is a whole number, which
-- INCRBY and GET understand.
--
-- period is the time until this window ends, in microseconds. The caller knows it because it
-- has named the window.

local function step(s, now, n, max, period, capacity, chargeDenied)
  local retry
  s.count, retry = countHits(s.count, n, max, period, chargeDenied)
  s.expires = now + period
  return s.count, period, retry
end

return {
  step = step,

  open = function(_, raw)
    if not raw then return { count = 0 } end
    if not raw:find('^%d+$') then return { err = 'WRONGTYPE the key holds another string' } end
    return { count = math.min(tonumber(raw), maxHits) }
  end,

  copy = function(s) return { count = s.count } end,

  -- Writes s if it differs from raw. A key lives until its time is up, even with a count of 0.
  -- Thus a replica that has seen the key can use INCRBY without setting a time to live.
  save = function(s, key, raw, _, ttl)
    local reply
    if not raw then
      if s.count == 0 then return end
      reply = redis.pcall('SET', key, string.format('%d', s.count), 'PX', ttl(s.expires), 'NX')
      if not reply then return 'WRONGTYPE the key holds another type' end
    else
      local change = s.count - tonumber(raw)
      if change == 0 then return end
      reply = redis.pcall('INCRBY', key, string.format('%d', change))
    end
    return type(reply) == 'table' and reply.err
  end,
}
