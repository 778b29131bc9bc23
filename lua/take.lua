-- take decides and charges the hits of many requests in one step. Every number here is whole and below 2^53.
--
-- KEYS     The counter of each hit. A later hit on a counter sees the charges of earlier hits.
-- ARGV[1]  MessagePack array: now, jitter, distinct, refundable, L, then 5 values for each of L limits,
--          then 2 values for each hit.
--            now         microseconds since 1970, or 0 for the clock of this Redis
--            jitter      milliseconds that are added to each time to live
--            distinct    1 if all keys differ, otherwise 0
--            refundable  milliseconds in which rls may refund a charge of a group that has hits in other calls
--                        (mode 8), or 0
--          The values of a limit:
--            name        the name of its algorithm
--            max         hits per window, below 2^32
--            period      the window in microseconds, at most ten years; for fixed_window the time until the
--                        window of the key ends; for concurrency the time until a hold expires
--            capacity    the most hits that can be spent at once, below 2^32; the negative of this number for
--                        a token_bucket with a burst of its own
--            mode        the sum of these numbers:
--                          1  denied hits are charged
--                          2  the hits are in a group
--                          4  the hits are in shadow mode, so their denial does not deny their group
--                          8  other calls of the script have hits of the same group
--          The values of a hit:
--            limit       the number of its limit among the L limits, from 1
--            n           -2^34 to 2^34 hits; 0 peeks, a negative n refunds. For concurrency, n can instead be an
--                        array of this number and the id of the hold. To refund an anonymous hold, the array
--                        has its expiry in place of the id
-- ARGV[2]  '' or a MessagePack array: the sizes of groups that divide the hits in order.
--          If a hit of a group is denied and is not in shadow mode, no hit of the group is charged.
--          In the reply, each hit still has the answer of its own limit.
--
-- Reply: MessagePack array of 3 numbers for each hit, then now in microseconds since 1970, then 2 values for
-- each failed hit.
--          spent       hits that the counter has spent now
--          reset       r       microseconds until nothing is spent, as limit.Result.ResetAfter
--                      -1 - r  the same, for a denial that may end early (backend.Result.DenialMayEndEarly)
--          retry       of a denied hit:
--                        r       microseconds, as limit.Result.RetryAfter
--                        -1      the hit can never pass (limit.Never)
--                      of an allowed hit:
--                        0       the usual reply
--                        -2      the hold of the hit existed (limit.Result.HoldExists)
--                        -2 - r  the hit has the RetryAfter r
--          A failed hit has its index in KEYS, from 1, and an error. The script charges nothing for it.
-- If Redis is a read-only replica, the script charges nothing and returns the error READONLY.
--
-- The script decides all hits before it writes the first key. So an error before the first write charges nothing.

local maxExactInteger = 2 ^ 53 -- numbers in Lua are exact up to this integer
local keys, hitCount = KEYS, #KEYS
local args = cmsgpack.unpack(ARGV[1])
local now, jitter, hasDistinctCounters, canRefund = args[1], args[2], args[3] == 1, args[4] > 0
local hitOffset = 5 + 5 * args[5] -- hit i is at args[hitOffset + 2 * i - 1] and args[hitOffset + 2 * i]
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Returns the time to live, in milliseconds, of a key with this expiry. %d is twice as fast as %.0f, and as exact.
local function ttl(expiry)
  return string.format('%d', math.ceil((expiry - now) / 1000) + jitter)
end

-- One call reads all keys. MGET returns false for a missing key or another type.
local storedValues = redis.call('MGET', unpack(keys))

-- A key can live up to expiryStep microseconds longer than its state. So most writes don't change the
-- time to live. Such a change would cost Redis as much as the write.
local expiryStep = 2 ^ 22

local reply = {}

-- These tables are for hits that change a counter of their own; the key is the index of the hit. values has the value to
-- write. expiries has the new expiry if the time to live changes. writes has the function that writes the value, if the
-- slow path has decided the hit.
local values, expiries, writes = {}, {}, {}

-- Returns the functions of the slow path, which decides the hits that the fast path (packed_admit) does not admit. Redis
-- runs the whole text of a script in every call. So only a call that needs these functions makes them.
local function makeSlowPath()
--[[slow_path]]
end

local slowPath

if ARGV[2] ~= '' then
  slowPath = makeSlowPath()
  slowPath.decideGroups()
else
  local packNumbers, unpackNumbers = struct.pack, struct.unpack
  local i = 1
  while i <= hitCount do
    local firstHit, limit = i, args[hitOffset + 2 * i - 1]
    repeat i = i + 1 until i > hitCount or args[hitOffset + 2 * i - 1] ~= limit
    local lastHit, limitIndex = i - 1, 5 * limit + 1
    local name, max, period, capacity = args[limitIndex], args[limitIndex + 1], args[limitIndex + 2], args[limitIndex + 3]
    local needsSlowPath = true
    if not hasDistinctCounters then
      -- The text of packed_admit comes next (lua.Take). It is only for hits that have a counter of their own. If it
      -- decides them, it sets needsSlowPath to false.
--[[admit]]
    end
    if needsSlowPath then
      slowPath = slowPath or makeSlowPath()
      slowPath.decideRange(limitIndex, firstHit, lastHit)
    end
  end
end

local pcallRedis = redis.pcall
for i = 1, hitCount do
  local value = values[i]
  if value ~= nil then
    local key, newExpiry, write, result = keys[i], expiries[i], writes[i], nil
    if write then
      result = write(key, storedValues[i], value, newExpiry, ttl)
    elseif not newExpiry then
      result = pcallRedis('SETRANGE', key, '0', value)
    elseif storedValues[i] then
      result = pcallRedis('SET', key, value, 'PX', ttl(newExpiry))
    else
      result = pcallRedis('SET', key, value, 'PX', ttl(newExpiry), 'NX')
    end
    if not result or type(result) == 'table' and result.err then
      slowPath = slowPath or makeSlowPath()
      local err = slowPath.writeError(result)
      if err:find('^READONLY') then return { err = err } end
      slowPath.setError(i, err)
    end
  end
end
reply[3 * hitCount + 1] = now
if slowPath then
  local err = slowPath.save()
  if err then return { err = err } end
  if canRefund then slowPath.markRefundable() end
  slowPath.appendErrors()
end
return cmsgpack.pack(reply)
