-- Returns the error message in a reply, or nil. In Redis 6, a message can begin with the number of a line of the script.
local function errorOf(reply)
  if type(reply) == 'table' and reply.err then return (reply.err:gsub('^@user_script: %d+: %-', '')) end
end

-- Returns the error message in the reply to a write, or nil. MGET returns false for a key of another type, as for a
-- missing key. SET NX then writes nothing and returns false.
local function writeError(reply)
  if not reply then return 'WRONGTYPE the key holds another type' end
  return errorOf(reply)
end

-- Runs a command once for each 1000 values, because unpack can't return all values of a long list. Returns an error message
-- if the command failed.
local function runInParts(command, key, values)
  for i = 1, #values, 1000 do
    local err = errorOf(redis.pcall(command, key, unpack(values, i, math.min(i + 999, #values))))
    if err then return err end
  end
end

-- stringAlgorithm adds the functions open and save to an algorithm that stores a state in one string. slow_path.lua calls
-- open and save for keys that occur more than once. For other keys, it calls read, encode and write, and uses one table
-- for all states.
local function stringAlgorithm(algorithm)
  local read, encode, write = algorithm.read, algorithm.encode, algorithm.write

  -- Returns the state stored in raw. If raw can't be used, the state has the error message err.
  algorithm.open = function(_, raw)
    local s = {}
    s.err = read(s, raw)
    return s
  end

  -- Writes s. Returns an error message if the write failed.
  algorithm.save = function(s, key, raw, period, ttl)
    local value, newExpiry = encode(s, period)
    if value == nil then return end
    return writeError(write(key, raw, value, newExpiry, ttl))
  end
  return algorithm
end

-- packedAlgorithm returns an algorithm with a packed state: two or three numbers a, b and c, which Redis stores as a
-- string of little-endian doubles. storedA, storedB and storedC are the numbers in Redis. If storedA is 0, Redis has no key.
--
-- format  the format of the string for struct.pack
-- size    the length of the string in bytes: 8 for each number
-- expiry  function(period, a, b, c) returns the time at which the state is forgotten; called only if a > 0
-- step    function(s, now, n, max, period, capacity, chargeDenied) does what limit.Limit.Take
--         does, and returns the numbers spent, reset and retry of the reply of take
local function packedAlgorithm(format, size, expiry, step)
  local packNumbers, unpackNumbers, hasC = struct.pack, struct.unpack, size > 16

  -- Rounds forgetTime up to a multiple of expiryStep. The key of the state expires at this time.
  local function keyExpiry(forgetTime) return forgetTime + -forgetTime % expiryStep end

  return stringAlgorithm({
    step = step,

    -- Sets s to the state stored in raw. Returns an error message if raw has another format.
    read = function(s, raw)
      if not raw then
        s.a, s.b, s.c, s.storedA = 0, 0, 0, 0
        return
      end
      if #raw ~= size then return 'WRONGTYPE the key holds another string' end
      local a, b, c = unpackNumbers(format, raw)
      if not (a > 0 and a < maxExactInteger and b >= 0 and b < maxExactInteger and c >= 0 and c < maxExactInteger
        and a % 1 == 0 and b % 1 == 0 and c % 1 == 0) then
        return 'WRONGTYPE the key holds another string'
      end
      s.a, s.b, s.c, s.storedA, s.storedB, s.storedC = a, b, c, a, b, c
    end,

    -- Returns the string for s, and the new expiry of the key if this expiry changes. Returns nil if Redis already has s,
    -- and false if the key must be deleted.
    encode = function(s, period)
      local a, b, c, storedA = s.a, s.b, s.c, s.storedA
      if a == 0 then
        if storedA == 0 then return nil end
        return false
      end
      if a == storedA and b == s.storedB and (not hasC or c == s.storedC) then return nil end
      local newExpiry = keyExpiry(expiry(period, a, b, c))
      if storedA > 0 and newExpiry == keyExpiry(expiry(period, storedA, s.storedB, s.storedC)) then
        newExpiry = nil
      end
      return packNumbers(format, a, b, c), newExpiry
    end,

    -- Writes what encode returned. Returns the reply of Redis.
    write = function(key, raw, value, newExpiry, ttl)
      if not value then return redis.pcall('DEL', key) end
      if not raw then return redis.pcall('SET', key, value, 'PX', ttl(newExpiry), 'NX') end
      if newExpiry then return redis.pcall('SET', key, value, 'PX', ttl(newExpiry)) end
      return redis.pcall('SETRANGE', key, '0', value)
    end,
  })
end

local maxHits = 2 ^ 34 -- the maximum of a count; equal to MaxHits of package limit

-- Does what limit.Limit.CountHits does. Returns the new count, and retry as in the reply of take.
local function countHits(count, n, max, timeLeft, chargeDenied)
  local spent = count + n
  if n < 0 then return spent > 0 and spent or 0, 0 end
  local retry = 0
  if spent > max then
    retry = n > max and -1 or timeLeft
    if not chargeDenied then return count, retry end
  end
  return spent < maxHits and spent or maxHits, retry
end
