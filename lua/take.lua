-- take decides and charges the hits of many requests in one step. Numbers in Lua are
-- doubles. Every number here is whole and below 2^53, hence exact.
--
-- KEYS     The counter of each hit. A key may occur many times: a later hit sees the
--          charge of an earlier one.
-- ARGV[1]  MessagePack array: now, jitter, L, then 5 values for each of L limits, then 2
--          values for each hit.
--            now       microseconds since 1970, or 0 for the clock of this Redis
--            jitter    milliseconds to add to each time to live
--          Of a limit:
--            name      the script of its algorithm
--            max       hits per window, below 2^32
--            period    the window in microseconds, at most ten years
--            capacity  the most that can be spent at once, below 2^32
--            flags     1: denied hits are charged; 2: the hit is all-or-none
--          Of a hit:
--            limit     the place of its limit, from 1
--            n         -2^34 to 2^34 hits; 0 peeks, a negative n refunds
-- ARGV[2]  '' or a MessagePack array: the sizes of groups that divide the hits in order.
--          If one all-or-none hit of a group is denied, no all-or-none hit of the group is
--          charged. Its other all-or-none hits are then answered as allowed, and spent
--          excludes the charges of the group. All other hits are charged as usual.
--
-- Reply: MessagePack array of 3 numbers for each hit, then 2 values for each failed hit.
--          spent     hits that the counter has spent now
--          reset     microseconds until nothing is spent, as limit.Result.ResetAfter
--          retry     microseconds, as limit.Result.RetryAfter: 0 if the hit is allowed
--          Of a failed hit: its place in KEYS, from 1, and an error. Nothing was charged
--          for it, and its 3 numbers mean nothing.
-- A replica can't charge anything and fails the whole call (READONLY).
--
-- The script decides all hits before it writes the first key. If it raises an error before
-- that, nothing is charged.

local args = cmsgpack.unpack(ARGV[1])
local now, jitter = args[1], args[2]
local hits = 3 + 5 * args[3] -- hit i is at args[hits + 2 * i - 1] and the next place
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function ttl(expiry) -- %d is exact on 64 bits, and twice as fast as %.0f
  return string.format('%d', math.ceil((expiry - now) / 1000) + jitter)
end

-- One call reads all keys. MGET returns false for a missing key or another type.
local stored = redis.call('MGET', unpack(KEYS))

local algorithms = {} -- by name
local states, firstHits = {}, {} -- the state of each key; the first hit of each state

-- Returns the place of hit i's limit in args: args[row] is its name, and so on.
local function rowOf(i) return 5 * args[hits + 2 * i - 1] - 1 end

-- Returns the state of hit i's counter. The state has err if the counter can't be used.
local function open(i, row)
  local name = args[row]
  local algorithm = algorithms[name] or compile[name] and compile[name]()
  algorithms[name] = algorithm
  local state
  if algorithm then
    state = algorithm.open(KEYS[i], stored[i])
  else
    state = { err = 'ERR no script is named ' .. tostring(name) }
  end
  states[KEYS[i]] = state
  firstHits[#firstHits + 1] = i
  return state
end

local reply = {}

if ARGV[2] == '' then
  local row, step, max, period, capacity, chargeDenied
  for i = 1, #KEYS do
    local r = rowOf(i)
    local state = states[KEYS[i]] or open(i, r)
    if r ~= row then
      local algorithm = algorithms[args[r]]
      row, step = r, algorithm and algorithm.step
      max, period, capacity, chargeDenied = args[r + 1], args[r + 2], args[r + 3], args[r + 4] == 1
    end
    local q = 3 * i
    if state.err then
      reply[q - 2], reply[q - 1], reply[q] = 0, 0, 0
    else
      reply[q - 2], reply[q - 1], reply[q] = step(state, now, args[hits + 2 * i], max, period, capacity, chargeDenied)
    end
  end
else
  local function allOrNone(i) return args[rowOf(i) + 4] == 2 end

  -- Decides n hits as hit i and sets the reply.
  local function decide(i, n)
    local row, q = rowOf(i), 3 * i
    local state = states[KEYS[i]]
    if state.err then
      reply[q - 2], reply[q - 1], reply[q] = 0, 0, 0
    else
      local max, period, capacity, flags = unpack(args, row + 1, row + 4)
      reply[q - 2], reply[q - 1], reply[q] = algorithms[args[row]].step(state, now, n, max, period, capacity, flags == 1)
    end
  end

  local first = 1
  for _, size in ipairs(cmsgpack.unpack(ARGV[2])) do
    local last = first + size - 1
    local copies, denied = {}, false
    for i = first, last do
      local key = KEYS[i]
      local state = states[key] or open(i, rowOf(i))
      copies[key] = copies[key] or state.err and state or algorithms[args[rowOf(i)]].copy(state)
    end
    for i = first, last do
      decide(i, args[hits + 2 * i])
      denied = denied or allOrNone(i) and reply[3 * i] ~= 0
    end
    if denied then
      for key, state in pairs(copies) do states[key] = state end
      for i = first, last do
        local retry = reply[3 * i]
        decide(i, allOrNone(i) and 0 or args[hits + 2 * i])
        if allOrNone(i) then reply[3 * i] = retry end
      end
    end
    first = last + 1
  end
end

local failed = false
for _, i in ipairs(firstHits) do
  local key = KEYS[i]
  local state = states[key]
  if not state.err then
    local row = rowOf(i)
    local err = algorithms[args[row]].save(state, key, stored[i], args[row + 2], ttl)
    if err then
      if err:find('^READONLY') then return { err = err } end
      state.err = err
    end
  end
  failed = failed or state.err
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
