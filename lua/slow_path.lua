-- slow_path decides the hits that packed_admit does not admit: denied hits, peeks, refunds, hits that
-- share a counter, hits of other algorithms, and groups. It is the body of makeSlowPath in take.

--[[algorithms]]

local errors = {} -- the errors of failed hits, by their place

local function fail(i, err) errors[i] = err end

-- Sets the reply to hit i.
local function answer(i, spent, reset, retry)
  reply[3 * i - 2], reply[3 * i - 1], reply[3 * i] = spent, reset, retry
end

local algorithms = {} -- by name; compile makes an algorithm

-- Returns the named algorithm, or nil.
local function find(name)
  local algorithm = algorithms[name] or compile(name)
  algorithms[name] = algorithm
  return algorithm
end

-- Decides the hits from first to last that have no reply. They have the limit at args[row]. Each hit has
-- a counter of its own, whose state is one string.
local function decideDistinct(algorithm, row, first, last)
  local step, read, encode, write = algorithm.step, algorithm.read, algorithm.encode, algorithm.write
  local max, period, capacity, chargeDenied = args[row + 1], args[row + 2], args[row + 3], args[row + 4] == 1
  local state = {} -- the state of one hit after the other
  for i = first, last do
    if not reply[3 * i] then
      local err = read(state, storedValues[i])
      if err then
        fail(i, err)
        answer(i, 0, 0, 0)
      else
        answer(i, step(state, now, args[hitOffset + 2 * i], max, period, capacity, chargeDenied))
        local value, newExpiry = encode(state, period)
        if value ~= nil then values[i], expiries[i], writes[i] = value, newExpiry, write end
      end
    end
  end
end

-- The functions from here on are for hits that share a counter, are in a group, or have a state of many values.
local states, firstHits = {}, {} -- the state of each key; the first hit of each state
local isGroupDenied = {} -- isGroupDenied[i] is true if the group of hit i is denied

-- Returns the place of hit i's limit in args: args[row] is its name, and so on.
local function rowOf(i) return 5 * args[hitOffset + 2 * i - 1] + 1 end

-- Returns the state of hit i's counter. The state has err if the counter can't be used.
local function open(i)
  local key = keys[i]
  local state = states[key]
  if not state then
    local name = args[rowOf(i)]
    local algorithm = find(name)
    if algorithm then
      state = algorithm.open(key, storedValues[i])
    else
      state = { err = 'ERR no script is named ' .. tostring(name) }
    end
    states[key] = state
    firstHits[#firstHits + 1] = i
  end
  return state
end

-- Decides n hits with the limit and the counter of hit i, and sets the reply.
local function decide(i, n)
  local row, state = rowOf(i), open(i)
  if state.err then return answer(i, 0, 0, 0) end
  local max, period, capacity, mode = unpack(args, row + 1, row + 4)
  answer(i, algorithms[args[row]].step(state, now, n, max, period, capacity, mode == 1))
end

-- Returns a copy of a value, and of all tables in it. copies has the copies of tables that occur again.
local function copy(value, copies)
  if type(value) ~= 'table' then return value end
  if not copies[value] then
    copies[value] = {}
    for k, v in pairs(value) do copies[value][k] = copy(v, copies) end
  end
  return copies[value]
end

-- Writes the states. Returns the error of a server that can't write.
local function save()
  for _, i in ipairs(firstHits) do
    local key, row = keys[i], rowOf(i)
    local state = states[key]
    if not state.err then
      state.err = algorithms[args[row]].save(state, key, storedValues[i], args[row + 2], ttl)
      if state.err and state.err:find('^READONLY') then return state.err end
    end
  end
  for i = 1, hits do
    local state = states[keys[i]]
    if state and state.err then fail(i, state.err) end
  end
end

-- Decides the hits from first to last that have no reply. They have the limit at args[row].
local function decideRun(row, first, last)
  local algorithm = isDistinct and find(args[row])
  if algorithm and algorithm.read then return decideDistinct(algorithm, row, first, last) end
  for i = first, last do decide(i, args[hitOffset + 2 * i]) end
end

local function isDenied(i) return reply[3 * i] > 0 or reply[3 * i] == -1 end

-- Decides the hits of all groups.
local function decideGroups()
  local function inGroup(i) return args[rowOf(i) + 4] >= 2 end

  -- A hit in shadow mode (6 or 14) does not deny its group.
  local function deniesGroup(i)
    local mode = args[rowOf(i) + 4]
    return (mode == 2 or mode == 10) and isDenied(i)
  end

  -- Returns a peek in place of n.
  local function peekOf(n) return type(n) == 'table' and { 0, n[2] } or 0 end

  local first = 1
  for _, size in ipairs(cmsgpack.unpack(ARGV[2])) do
    local last = first + size - 1
    local copies, denied = {}, false
    for i = first, last do
      copies[keys[i]] = copies[keys[i]] or copy(open(i), {})
    end
    for i = first, last do
      decide(i, args[hitOffset + 2 * i])
      denied = denied or deniesGroup(i)
    end
    if denied then
      for i = first, last do isGroupDenied[i] = true end
      for key, state in pairs(copies) do states[key] = state end
      for i = first, last do
        local retry, n = reply[3 * i], args[hitOffset + 2 * i]
        decide(i, inGroup(i) and peekOf(n) or n)
        if inGroup(i) then reply[3 * i] = retry end
      end
    end
    first = last + 1
  end
end

-- While a counter has charges that may be refunded, there is a key with the name of the counter and this suffix.
-- Names of counters have two hexadecimal digits after a %.
local refundableSuffix = '%refundable'

-- Marks the counters that hits with mode 8 have charged. If a counter has a mark and denies a hit, its reset time in
-- the reply says that the denial may end early (see take.lua).
local function markRefundable()
  for i = 1, hits do
    local mark = keys[i] .. refundableSuffix
    if isDenied(i) then
      if redis.pcall('GET', mark) ~= false then reply[3 * i - 1] = -1 - reply[3 * i - 1] end
    elseif args[rowOf(i) + 4] >= 8 and not isGroupDenied[i] then
      redis.pcall('SET', mark, '', 'PX', args[4])
    end
  end
end

-- Appends the errors to the reply.
local function appendErrors()
  for i = 1, hits do
    if errors[i] then
      reply[#reply + 1] = i
      reply[#reply + 1] = errors[i]
    end
  end
end

return {
  fail = fail, decideRun = decideRun, decideGroups = decideGroups, writeError = writeError, save = save,
  markRefundable = markRefundable, appendErrors = appendErrors,
}
