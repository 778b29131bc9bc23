-- packed makes an algorithm whose state is up to three numbers, a, b and c,
-- stored as a string of doubles, little-endian. The state is zero, and not
-- stored, when a is 0.
--
-- format  of the string, as for struct.pack
-- size    of the string in bytes
-- ends    function(period, a, b, c): when a state that isn't zero is forgotten
-- step    function(s, now, n, max, period, capacity, charge): as limit.Limit.Take;
--         returns allowed (1 or 0), remaining, reset after, retry after
local function packed(format, size, ends, step)
  local pack, unpack = struct.pack, struct.unpack
  return {
    step = step,

    -- The state of hit i's key, of which raw is stored; or one with err.
    open = function(i, key, raw)
      if not raw then return { i = i, a = 0, b = 0, c = 0 } end
      if #raw ~= size then return { i = i, err = 'WRONGTYPE ' .. key .. ' holds another string' } end
      local a, b, c = unpack(format, raw)
      return { i = i, a = a, b = b, c = c }
    end,

    copy = function(s) return { i = s.i, a = s.a, b = s.b, c = s.c } end,

    -- Writes s where it differs from raw; returns an error message if it can't.
    save = function(s, key, raw, period, ttl)
      local reply
      if s.a == 0 then
        if not raw then return end
        reply = redis.pcall('DEL', key)
      else
        local new = pack(format, s.a, s.b, s.c)
        if new == raw then return end
        local at = ends(period, s.a, s.b, s.c)
        if not raw then
          reply = redis.pcall('SET', key, new, 'PX', ttl(at), 'NX')
          if not reply then return 'WRONGTYPE ' .. key .. ' holds another type' end
        elseif at == ends(period, unpack(format, raw)) then -- so is its time to live
          reply = redis.pcall('SETRANGE', key, '0', new)
        else
          reply = redis.pcall('SET', key, new, 'PX', ttl(at))
        end
      end
      return type(reply) == 'table' and reply.err
    end,
  }
end
