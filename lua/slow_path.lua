-- slow_path decides the hits that packed_admit does not admit: denied hits, peeks, refunds, hits that
-- share a counter, hits of algorithms without a packed state, and groups. It is the body of makeSlowPath in take.

--[[algorithms]]

local errors = {} -- the errors of failed hits; the key is the index of the hit

local function setError(i, err) errors[i] = err end

-- Sets the reply to hit i.
local function setReply(i, spent, reset, retry)
  reply[3 * i - 2], reply[3 * i - 1], reply[3 * i] = spent, reset, retry
end

local algorithms = {} -- the algorithms that compile has made; the key is the name

-- Returns the named algorithm, or nil.
local function findAlgorithm(name)
  local algorithm = algorithms[name] or compile(name)
  algorithms[name] = algorithm
  return algorithm
end

-- Decides the hits from firstHit to lastHit that have no reply. All hits have the limit at args[limitIndex]. Each hit has
-- a counter of its own, with a state in one string.
local function decideDistinctCounters(algorithm, limitIndex, firstHit, lastHit)
  local step, read, encode, write = algorithm.step, algorithm.read, algorithm.encode, algorithm.write
  local max, period, capacity, chargeDenied = args[limitIndex + 1], args[limitIndex + 2], args[limitIndex + 3], args[limitIndex + 4] == 1
  local state = {} -- read overwrites the state for each hit
  for i = firstHit, lastHit do
    if not reply[3 * i] then
      local err = read(state, storedValues[i])
      if err then
        setError(i, err)
        setReply(i, 0, 0, 0)
      else
        setReply(i, step(state, now, args[hitOffset + 2 * i], max, period, capacity, chargeDenied))
        local value, newExpiry = encode(state, period)
        if value ~= nil then values[i], expiries[i], writes[i] = value, newExpiry, write end
      end
    end
  end
end

-- The functions below are for hits that share a counter, are in a group, or have a state of several values.
local states, firstHits = {}, {} -- states has the state of each key; firstHits has the first hit of each key
local isGroupDenied = {} -- isGroupDenied[i] is true if the group of hit i is denied

-- Returns the index in args of the first value of the limit of hit i: the name of the algorithm.
local function limitIndexOf(i) return 5 * args[hitOffset + 2 * i - 1] + 1 end

-- Returns the state of the counter of hit i. If the counter can't be used, the state has the error message err.
local function openState(i)
  local key = keys[i]
  local state = states[key]
  if not state then
    local name = args[limitIndexOf(i)]
    local algorithm = findAlgorithm(name)
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
  local limitIndex, state = limitIndexOf(i), openState(i)
  if state.err then return setReply(i, 0, 0, 0) end
  local max, period, capacity, mode = unpack(args, limitIndex + 1, limitIndex + 4)
  setReply(i, algorithms[args[limitIndex]].step(state, now, n, max, period, capacity, mode == 1))
end

-- Returns a deep copy of a value. copies has the copy of each table that was copied already; the key is the table.
local function copy(value, copies)
  if type(value) ~= 'table' then return value end
  if not copies[value] then
    copies[value] = {}
    for k, v in pairs(value) do copies[value][k] = copy(v, copies) end
  end
  return copies[value]
end

-- Writes all states to Redis. Returns an error only if the server can't write at all.
local function save()
  for _, i in ipairs(firstHits) do
    local key, limitIndex = keys[i], limitIndexOf(i)
    local state = states[key]
    if not state.err then
      state.err = algorithms[args[limitIndex]].save(state, key, storedValues[i], args[limitIndex + 2], ttl)
      if state.err and state.err:find('^READONLY') then return state.err end
    end
  end
  for i = 1, hitCount do
    local state = states[keys[i]]
    if state and state.err then setError(i, state.err) end
  end
end

-- Decides the hits from firstHit to lastHit that have no reply. All hits have the limit at args[limitIndex].
local function decideRange(limitIndex, firstHit, lastHit)
  local algorithm = hasDistinctCounters and findAlgorithm(args[limitIndex])
  if algorithm and algorithm.read then return decideDistinctCounters(algorithm, limitIndex, firstHit, lastHit) end
  for i = firstHit, lastHit do decide(i, args[hitOffset + 2 * i]) end
end

-- Reports whether the reply denies hit i.
local function isDenied(i) return reply[3 * i] > 0 or reply[3 * i] == -1 end

-- Decides the hits of all groups.
local function decideGroups()
  local function isInGroup(i) return args[limitIndexOf(i) + 4] >= 2 end

  -- A hit in shadow mode (6 or 14) does not deny its group.
  local function deniesGroup(i)
    local mode = args[limitIndexOf(i) + 4]
    return (mode == 2 or mode == 10) and isDenied(i)
  end

  -- Returns the n of a peek for the same hold as n.
  local function peekOf(n) return type(n) == 'table' and { 0, n[2] } or 0 end

  local firstHit = 1
  for _, size in ipairs(cmsgpack.unpack(ARGV[2])) do
    local lastHit = firstHit + size - 1
    local copies, isAnyDenied = {}, false
    for i = firstHit, lastHit do
      copies[keys[i]] = copies[keys[i]] or copy(openState(i), {})
    end
    for i = firstHit, lastHit do
      decide(i, args[hitOffset + 2 * i])
      isAnyDenied = isAnyDenied or deniesGroup(i)
    end
    if isAnyDenied then
      for i = firstHit, lastHit do isGroupDenied[i] = true end
      for key, state in pairs(copies) do states[key] = state end
      for i = firstHit, lastHit do
        local retry, n = reply[3 * i], args[hitOffset + 2 * i]
        decide(i, isInGroup(i) and peekOf(n) or n)
        if isInGroup(i) then reply[3 * i] = retry end
      end
    end
    firstHit = lastHit + 1
  end
end

-- While charges of a counter may still be refunded, Redis has a key with the name of the counter and this suffix. No
-- counter has such a name, because two hexadecimal digits follow each % in the name of a counter.
local refundableSuffix = '%refundable'

-- Sets the key with refundableSuffix for each counter that a hit with mode 8 has charged. If a counter has this key and
-- denies a hit, the reset time in the reply becomes negative: the denial may end early (see take.lua).
local function markRefundable()
  for i = 1, hitCount do
    local refundableKey = keys[i] .. refundableSuffix
    if isDenied(i) then
      if redis.pcall('GET', refundableKey) ~= false then reply[3 * i - 1] = -1 - reply[3 * i - 1] end
    elseif args[limitIndexOf(i) + 4] >= 8 and not isGroupDenied[i] then
      redis.pcall('SET', refundableKey, '', 'PX', args[4])
    end
  end
end

-- Appends the errors to the reply.
local function appendErrors()
  for i = 1, hitCount do
    if errors[i] then
      reply[#reply + 1] = i
      reply[#reply + 1] = errors[i]
    end
  end
end

return {
  setError = setError, decideRange = decideRange, decideGroups = decideGroups, writeError = writeError, save = save,
  markRefundable = markRefundable, appendErrors = appendErrors,
}
