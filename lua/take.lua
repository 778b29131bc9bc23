-- take decides and charges the hits of many requests in one step. Numbers in Lua are
-- doubles. Every number here is whole and below 2^53, hence exact.
--
-- KEYS     The counter of each hit. A key may occur many times: a later hit sees the
--          charge of an earlier one.
-- ARGV[1]  MessagePack array: now, jitter, distinct, L, then 5 values for each of L limits, then 2
--          values for each hit.
--            now       microseconds since 1970, or 0 for the clock of this Redis
--            jitter    milliseconds to add to each time to live
--            distinct  1 if no key occurs twice, otherwise 0
--          Of a limit:
--            name      the script of its algorithm
--            max       hits per window, below 2^32
--            period    the window in microseconds, at most ten years; for fixed_window the
--                      time until the window ends that the key names; for concurrency the
--                      time until a hold expires
--            capacity  the most hits that can be spent at once, below 2^32
--            mode      0; 1: denied hits are charged; 2: its hits are all-or-none
--          Of a hit:
--            limit     the place of its limit among the L limits, from 1
--            n         -2^34 to 2^34 hits; 0 peeks, a negative n refunds. For concurrency, also an
--                      array of this number and the id of a named hold, or of a negative number
--                      and the expiry of the anonymous hold that the refund is for
-- ARGV[2]  '' or a MessagePack array: the sizes of groups that divide the hits in order.
--          If one all-or-none hit of a group is denied, no all-or-none hit of the group is
--          charged or counted in spent, and its all-or-none hits that are not denied are
--          answered as allowed. All other hits are charged as usual.
--
-- Reply: MessagePack array of 3 numbers for each hit, then the time now in microseconds, then 2
-- values for each failed hit.
--          spent     hits that the counter has spent now
--          reset     microseconds until nothing is spent, as limit.Result.ResetAfter
--          retry     microseconds, as limit.Result.RetryAfter: 0 if the hit is allowed, and -2
--                    if it is allowed because its hold existed (limit.Result.Held)
--          A failed hit has its place in KEYS, from 1, and an error. Nothing was charged
--          for it, and its 3 numbers mean nothing.
-- A read-only replica of Redis charges nothing and fails the whole call (READONLY).
--
-- The script decides all hits before it writes the first key. If it raises an error before
-- that, nothing is charged.

local args = cmsgpack.unpack(ARGV[1])
local now, jitter = args[1], args[2]
local hitOffset = 4 + 5 * args[4] -- hit i is at args[hitOffset + 2 * i - 1] and the next place
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function ttl(expiry) -- %d is exact on 64 bits, and twice as fast as %.0f
  return string.format('%d', math.ceil((expiry - now) / 1000) + jitter)
end

-- One call reads all keys. MGET returns false for a missing key or another type.
local storedValues = redis.call('MGET', unpack(KEYS))

local algorithms = {} -- by name; compile makes an algorithm (see lua.Take)
local states, firstHits = {}, {} -- the state of each key; the first hit of each state

-- Returns the place of hit i's limit in args: args[row] is its name, and so on.
local function rowOf(i) return 5 * args[hitOffset + 2 * i - 1] end

-- Returns the named algorithm, or nil.
local function find(name)
  local algorithm = algorithms[name] or compile[name] and compile[name]()
  algorithms[name] = algorithm
  return algorithm
end

local function unknown(name) return 'ERR no script is named ' .. tostring(name) end

-- Returns the state of hit i's counter. The state has err if the counter can't be used.
local function open(i, row)
  local algorithm = find(args[row])
  local state
  if algorithm then
    state = algorithm.open(KEYS[i], storedValues[i])
  else
    state = { err = unknown(args[row]) }
  end
  states[KEYS[i]] = state
  firstHits[#firstHits + 1] = i
  return state
end

local reply = {}

-- Each hit has a value, an expiry and a function to write, if no key occurs twice.
local values, expiries, writes = {}, {}, {}
local errors = {} -- the errors of these hits

if ARGV[2] == '' then
  local isDistinct = args[3] == 1
  local scratch = {} -- the state of one hit after the other
  local previousRow, step, read, encode, write, max, period, capacity, chargeDenied
  for i = 1, #KEYS do
    local place = hitOffset + 2 * i - 1
    local row = 5 * args[place]
    if row ~= previousRow then
      local algorithm = find(args[row])
      previousRow, step = row, algorithm and algorithm.step
      read, encode, write = nil, nil, nil
      if algorithm and isDistinct then read, encode, write = algorithm.read, algorithm.encode, algorithm.write end
      max, period, capacity, chargeDenied = args[row + 1], args[row + 2], args[row + 3], args[row + 4] == 1
    end
    local state, err = scratch
    if read then
      err = read(scratch, storedValues[i])
      if err then
        errors[i] = err
        errors.exist = true
      end
    else
      state = states[KEYS[i]] or open(i, row)
      err = state.err
    end
    local replyEnd = 3 * i -- the place of the last number of hit i
    if err then
      reply[replyEnd - 2], reply[replyEnd - 1], reply[replyEnd] = 0, 0, 0
    else
      reply[replyEnd - 2], reply[replyEnd - 1], reply[replyEnd] =
        step(state, now, args[place + 1], max, period, capacity, chargeDenied)
      if read then
        local value, expires = encode(scratch, period)
        if value ~= nil then values[i], expiries[i], writes[i] = value, expires, write end
      end
    end
  end
else
  local function allOrNone(i) return args[rowOf(i) + 4] == 2 end

  local function isDenied(i) return reply[3 * i] ~= 0 and reply[3 * i] ~= -2 end

  -- Returns a peek in place of n.
  local function peekOf(n) return type(n) == 'table' and { 0, n[2] } or 0 end

  -- Decides n hits with the limit and the counter of hit i, and sets the reply.
  local function decide(i, n)
    local row, replyEnd = rowOf(i), 3 * i
    local state = states[KEYS[i]]
    if state.err then
      reply[replyEnd - 2], reply[replyEnd - 1], reply[replyEnd] = 0, 0, 0
    else
      local max, period, capacity, mode = unpack(args, row + 1, row + 4)
      reply[replyEnd - 2], reply[replyEnd - 1], reply[replyEnd] =
        algorithms[args[row]].step(state, now, n, max, period, capacity, mode == 1)
    end
  end

  local groupStart = 1
  for _, size in ipairs(cmsgpack.unpack(ARGV[2])) do
    local groupEnd = groupStart + size - 1
    local copies, denied = {}, false
    for i = groupStart, groupEnd do
      local key = KEYS[i]
      local state = states[key] or open(i, rowOf(i))
      copies[key] = copies[key] or state.err and state or algorithms[args[rowOf(i)]].copy(state)
    end
    for i = groupStart, groupEnd do
      decide(i, args[hitOffset + 2 * i])
      denied = denied or allOrNone(i) and isDenied(i)
    end
    if denied then
      for key, state in pairs(copies) do states[key] = state end
      for i = groupStart, groupEnd do
        local retry, n = reply[3 * i], args[hitOffset + 2 * i]
        decide(i, allOrNone(i) and peekOf(n) or n)
        if allOrNone(i) then reply[3 * i] = retry end
      end
    end
    groupStart = groupEnd + 1
  end
end

for i = 1, #KEYS do
  local write = writes[i]
  local err = write and writeError(write(KEYS[i], storedValues[i], values[i], expiries[i], ttl))
  if err then
    if err:find('^READONLY') then return { err = err } end
    errors[i] = err
    errors.exist = true
  end
end
for _, i in ipairs(firstHits) do
  local key = KEYS[i]
  local state = states[key]
  if not state.err then
    local row = rowOf(i)
    local err = algorithms[args[row]].save(state, key, storedValues[i], args[row + 2], ttl)
    if err then
      if err:find('^READONLY') then return { err = err } end
      state.err = err
    end
  end
  errors.exist = errors.exist or state.err
end
reply[3 * #KEYS + 1] = now
if errors.exist then
  for i = 1, #KEYS do
    local state = states[KEYS[i]]
    local err = errors[i] or state and state.err
    if err then
      reply[#reply + 1] = i
      reply[#reply + 1] = err
    end
  end
end
return cmsgpack.pack(reply)
