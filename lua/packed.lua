-- packed returns an algorithm whose state is up to three numbers, a, b and c. The numbers
-- are stored as a string of little-endian doubles. If a is 0, the state is zero and the key
-- does not exist.
--
-- format  the format of the string, as for struct.pack
-- size    the length of the string in bytes
-- expiry  function(period, a, b, c) returns the time at which a nonzero state is forgotten
-- step    function(s, now, n, max, period, capacity, chargeDenied) does what
--         limit.Limit.Take does, and returns spent, reset and retry as in take's reply
local function packed(format, size, expiry, step)
  local pack, unpack, exact = struct.pack, struct.unpack, 2 ^ 53
  return {
    step = step,

    -- Returns the state stored in raw. The state has err if raw has another format.
    open = function(_, raw)
      if not raw then return { a = 0, b = 0, c = 0 } end
      if #raw ~= size then return { err = 'WRONGTYPE the key holds another string' } end
      local a, b, c = unpack(format, raw)
      if not (a > 0 and a < exact and b >= 0 and b < exact and a % 1 == 0 and b % 1 == 0) then
        return { err = 'WRONGTYPE the key holds another string' }
      end
      return { a = a, b = b, c = c }
    end,

    copy = function(s) return { a = s.a, b = s.b, c = s.c } end,

    -- Writes s if it differs from raw. Returns an error message if the write failed.
    save = function(s, key, raw, period, ttl)
      local reply
      if s.a == 0 then
        if not raw then return end
        reply = redis.pcall('DEL', key)
      else
        local new = pack(format, s.a, s.b, s.c)
        if new == raw then return end
        local expires = expiry(period, s.a, s.b, s.c)
        if not raw then
          reply = redis.pcall('SET', key, new, 'PX', ttl(expires), 'NX')
          if not reply then return 'WRONGTYPE the key holds another type' end
        elseif expires == expiry(period, unpack(format, raw)) then -- keeps the time to live
          reply = redis.pcall('SETRANGE', key, '0', new)
        else
          reply = redis.pcall('SET', key, new, 'PX', ttl(expires))
        end
      end
      return type(reply) == 'table' and reply.err
    end,
  }
end

local maxHits = 2 ^ 34 -- the maximum of a count

-- Does what limit.Limit.CountHits does. Returns the new count and retry as in take's reply.
local function countHits(count, n, max, untilEnd, chargeDenied)
  local spent = count + n
  if n < 0 then return spent > 0 and spent or 0, 0 end
  local retry = 0
  if spent > max then
    retry = n > max and -1 or untilEnd
    if not chargeDenied then return count, retry end
  end
  return spent < maxHits and spent or maxHits, retry
end
