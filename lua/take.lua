-- take charges many hits of many requests in one step. Lua numbers are doubles:
-- every number here is whole and below 2^53, hence exact.
--
-- KEYS     one per hit: its counter. The same key may occur many times; a later
--          hit sees what an earlier one has charged.
-- ARGV[1]  MessagePack array of numbers: now, jitter, then for each hit five:
--            code      algorithm (its place in lua.Names), + 4 if denied hits
--                      are charged as well, + 8 if the hit binds its group
--            max       hits per window, below 2^32
--            period    the window in microseconds, at most ten years
--            capacity  the most that can be spent at once; below 2^32
--            n         how many hits: -2^34 to 2^34; 0 peeks, negative gives back
--          now is microseconds since 1970, or 0 for the clock of this Redis;
--          jitter is milliseconds to add to each time to live.
-- ARGV[2]  '' or MessagePack array of numbers: the sizes of groups, in the order
--          of the hits, of together all hits. If a hit that binds its group is
--          denied, no hit that binds the group is charged: the denied ones are
--          answered as denied, the others as allowed, all with what remains
--          without the group's charges. The other hits of the group are charged
--          as always.
--
-- Reply: MessagePack array of four numbers for each hit: allowed (1 or 0),
-- remaining, reset after, retry after (microseconds; -1 for never), as in
-- limit.Result; then, for each hit that failed, its index in KEYS and a message.
-- The four numbers of a failed hit mean nothing, and nothing was charged for it.
-- A replica, which can't charge anybody, fails the whole call (READONLY).
--
-- All is computed first and then written key by key, so that an error raised on
-- the way (which fails the whole script) has charged nothing.

local arg = cmsgpack.unpack(ARGV[1])
local now, jitter = arg[1], arg[2]
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function ttl(ends) -- %d is exact on 64 bits, and twice as fast as %.0f
  return string.format('%d', math.ceil((ends - now) / 1000) + jitter)
end

-- What is stored of each hit's key, in one call; false if it is no string. (A
-- key of another type is then left alone by the NX below.)
local stored = redis.call('MGET', unpack(KEYS))
local states = {} -- by key

local function open(i)
  local code = arg[5 * i - 2] % 4
  local algorithm = algorithms[code]
  if not algorithm then
    algorithm = compile[code]()
    algorithms[code] = algorithm
  end
  local s = algorithm.open(i, KEYS[i], stored[i])
  states[KEYS[i]] = s
  return s
end

local reply = {}

-- Asks for n hits as hit i, sets its reply and tells whether it is denied.
local function step(i, n, charge)
  local s = states[KEYS[i]] or open(i)
  local p, q = 5 * i, 4 * i
  if s.err then -- as if nothing were spent
    reply[q - 3], reply[q - 2], reply[q - 1], reply[q] = 0, arg[p + 1], 0, 0
  else
    local algorithm = algorithms[arg[p - 2] % 4]
    local allowed, remaining, reset, retry = algorithm.step(s, now, n, arg[p - 1], arg[p], arg[p + 1], charge)
    reply[q - 3], reply[q - 2], reply[q - 1], reply[q] = allowed, remaining, reset, retry
  end
  return not s.err and reply[q - 3] == 0
end

if ARGV[2] == '' then
  for i = 1, #KEYS do step(i, arg[5 * i + 2], arg[5 * i - 2] % 8 >= 4) end
else
  local function charges(i) return arg[5 * i - 2] % 8 >= 4 end
  local function binds(i) return arg[5 * i - 2] % 16 >= 8 end

  local function group(first, last)
    local before, denied = {}, false
    for i = first, last do
      local s = states[KEYS[i]] or open(i)
      before[KEYS[i]] = before[KEYS[i]] or s.err and s or algorithms[arg[5 * i - 2] % 4].copy(s)
    end
    for i = first, last do
      if step(i, arg[5 * i + 2], charges(i) and not binds(i)) and binds(i) then denied = true end
    end
    if not denied then return end
    for key, s in pairs(before) do states[key] = s end
    for i = first, last do
      local allowed, retry = reply[4 * i - 3], reply[4 * i]
      if binds(i) then
        step(i, 0, false)
        reply[4 * i - 3], reply[4 * i] = allowed, retry
      else
        step(i, arg[5 * i + 2], charges(i))
      end
    end
  end

  local first = 1
  for _, size in ipairs(cmsgpack.unpack(ARGV[2])) do
    group(first, first + size - 1)
    first = first + size
  end
end

local failed = false
for key, s in pairs(states) do
  local err, i = s.err, s.i
  if not err then
    err = algorithms[arg[5 * i - 2] % 4].save(s, key, stored[i], arg[5 * i], ttl)
    if err then
      if err:find('^READONLY') then return { err = err } end
      s.err = err
    end
  end
  failed = failed or err
end
if failed then
  for i = 1, #KEYS do
    local err = states[KEYS[i]].err
    if err then
      reply[#reply + 1] = i
      reply[#reply + 1] = err
    end
  end
end
return cmsgpack.pack(reply)
