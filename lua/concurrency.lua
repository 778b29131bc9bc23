-- concurrency computes the same as limit.concurrency, which documents the algorithm.
--
-- Redis stores the holds as a sorted set. The expiry code of a hold is twice its expiry in microseconds since 1970, plus
-- 1 if the hold has several slots. Expiry codes are exact until the year 2112. A member has one of these names:
--
--   i<id>        a named hold; the score is the expiry code
--   a<expiry>    an anonymous hold; the score is the negative expiry code
--   w<member>    the hold of this member has several slots; the score is the negative number of these slots
--   x            the score is the negative number of the slots of all holds
--
-- The score of an anonymous hold is always below the score of every w<member> and of x.
--
-- s is the state of one key. s.newHolds has the new and the changed holds, which save writes. s.obsoleteSlots has the
-- holds in Redis that have changed or ended, with the numbers of their slots. The keys of both tables are members.

local maxMembers = 100000        -- equal to maxHoldMembers of package limit
local anonymousByte = 97         -- the letter a, with which the members of anonymous holds begin
local lowestSlotsScore = -2 ^ 34 -- the scores of anonymous holds are below this score

-- Returns the number of members of hold in the sorted set.
local function membersOf(hold) return hold.slots > 1 and 2 or 1 end

-- Returns the hold that a member of the sorted set stands for.
local function holdOf(s, member, score)
  local expiryCode = math.abs(tonumber(score))
  local hold = { member = member, expiry = math.floor(expiryCode / 2), slots = 1, isStored = true }
  if expiryCode % 2 == 1 then hold.slots = -(tonumber(redis.call('ZSCORE', s.key, 'w' .. member) or -1)) end
  return hold
end

-- Returns a list for the anonymous holds or for the named holds. command reads the holds of the list from Redis: the holds
-- with a score between the two scores. storedHolds has the holds that were read, and newHolds has the new and the changed
-- holds. Both tables start with the hold that expires first. The holds before storedHolds[firstIndex] have ended.
local function newList(command, firstScore, lastScore)
  return {
    command = command, firstScore = firstScore, lastScore = lastScore, storedHolds = {}, newHolds = {}, firstIndex = 1, pageSize = 8,
  }
end

-- Returns stored hold i of list, or nil. Reads further holds from Redis if necessary.
local function storedHold(s, list, i)
  while i > #list.storedHolds and not list.isComplete do
    local reply = redis.call(list.command, s.key, list.firstScore, list.lastScore, 'WITHSCORES', 'LIMIT', #list.storedHolds, list.pageSize)
    for j = 1, #reply, 2 do list.storedHolds[#list.storedHolds + 1] = holdOf(s, reply[j], reply[j + 1]) end
    list.isComplete = #reply < 2 * list.pageSize
    list.pageSize = 2 * list.pageSize
  end
  return list.storedHolds[i]
end

-- Finds the first stored hold from hold i on that still exists. Returns the index of this hold, and the hold or nil.
local function findStoredHold(s, list, i)
  local hold = storedHold(s, list, i)
  while hold and s.obsoleteSlots[hold.member] do
    i = i + 1
    hold = storedHold(s, list, i)
  end
  return i, hold
end

-- Returns the hold of list that expires first, or nil.
local function firstHold(s, list)
  local oldHold
  list.firstIndex, oldHold = findStoredHold(s, list, list.firstIndex)
  local newHold = list.newHolds[1]
  if not oldHold or newHold and newHold.expiry < oldHold.expiry then return newHold end
  return oldHold
end

-- Returns the list that has the hold of member.
local function listOf(s, member) return member:byte() == anonymousByte and s.anonymousList or s.namedList end

-- Removes hold from s.
local function remove(s, hold)
  s.slots, s.members = s.slots - hold.slots, s.members - membersOf(hold)
  if hold.isStored then
    s.obsoleteSlots[hold.member] = hold.slots
    return
  end
  s.newHolds[hold.member] = nil
  local holds = listOf(s, hold.member).newHolds
  for i = 1, #holds do
    if holds[i] == hold then return table.remove(holds, i) end
  end
end

-- Adds a new hold to s.
local function add(s, member, expiry, slots)
  local hold = { member = member, expiry = expiry, slots = slots }
  s.slots, s.members = s.slots + slots, s.members + membersOf(hold)
  s.newHolds[member] = hold
  local holds = listOf(s, member).newHolds
  local i = #holds
  while i > 0 and holds[i].expiry > expiry do i = i - 1 end
  table.insert(holds, i + 1, hold)
end

-- Returns the hold with this member, or nil.
local function find(s, member)
  if s.newHolds[member] then return s.newHolds[member] end
  if s.obsoleteSlots[member] then return nil end
  local score = redis.call('ZSCORE', s.key, member)
  return score and holdOf(s, member, score)
end

-- Removes the holds that have expired at now.
local function expire(s, now)
  for _, list in ipairs({ s.anonymousList, s.namedList }) do
    local hold = firstHold(s, list)
    while hold and hold.expiry <= now do
      remove(s, hold)
      hold = firstHold(s, list)
    end
  end
end

-- Removes up to this number of slots of the anonymous hold with this expiry.
local function removeAnonymousHold(s, slots, expiry)
  local hold = find(s, string.format('a%d', expiry))
  if not hold then return end
  remove(s, hold)
  if hold.slots > slots then add(s, hold.member, expiry, hold.slots - slots) end
end

-- Removes this number of slots of the anonymous holds that expire first.
local function releaseAnonymousSlots(s, slots)
  local hold = firstHold(s, s.anonymousList)
  while hold and slots > 0 do
    remove(s, hold)
    if hold.slots > slots then add(s, hold.member, hold.expiry, hold.slots - slots) end
    slots = slots - hold.slots
    hold = firstHold(s, s.anonymousList)
  end
end

-- Returns the time at which at least this number of slots has expired. If another program has removed holds from Redis,
-- the holds can have fewer slots. In this case, it returns the last expiry, or now if there is no hold.
local function expiryAfter(s, slots, now)
  local cursors = {}
  for _, list in ipairs({ s.anonymousList, s.namedList }) do
    cursors[#cursors + 1] = { list = list, i = list.firstIndex }
    cursors[#cursors + 1] = { newHolds = list.newHolds, i = 1 }
  end
  local expiry = now
  while slots > 0 do
    local earliestCursor, earliestHold
    for _, cursor in ipairs(cursors) do
      local hold
      if cursor.list then
        cursor.i, hold = findStoredHold(s, cursor.list, cursor.i)
      else
        hold = cursor.newHolds[cursor.i]
      end
      if hold and (not earliestHold or hold.expiry < earliestHold.expiry) then
        earliestCursor, earliestHold = cursor, hold
      end
    end
    if not earliestHold then break end
    earliestCursor.i = earliestCursor.i + 1
    expiry, slots = earliestHold.expiry, slots - earliestHold.slots
  end
  return expiry
end

-- Appends the scores and members of hold to scores, as ZADD needs them.
local function appendScores(scores, hold)
  local hasSeveralSlots = hold.slots > 1
  local expiryCode = 2 * hold.expiry + (hasSeveralSlots and 1 or 0)
  scores[#scores + 1] = string.format('%d', hold.member:byte() == anonymousByte and -expiryCode or expiryCode)
  scores[#scores + 1] = hold.member
  if hasSeveralSlots then
    scores[#scores + 1] = string.format('%d', -hold.slots)
    scores[#scores + 1] = 'w' .. hold.member
  end
end

return {
  -- Returns the state of key. If the value of key is no set of holds, the state has the error message err.
  open = function(key)
    local score, size = redis.pcall('ZSCORE', key, 'x'), redis.pcall('ZCARD', key)
    local err = errorOf(score) or errorOf(size)
    if err then return { err = err } end
    if size > 0 and not score then return { err = 'WRONGTYPE the key holds another sorted set' } end
    return {
      key = key, slots = score and -tonumber(score) or 0, members = math.max(size - 1, 0),
      isStored = size > 0, newHolds = {}, obsoleteSlots = {},
      anonymousList = newList('ZREVRANGEBYSCORE', string.format('(%d', lowestSlotsScore), '-inf'),
      namedList = newList('ZRANGEBYSCORE', '(0', '+inf'),
    }
  end,

  -- Decides a hit. hit is the value n in the arguments of take.lua: a number, or an array of a number and an id
  -- or an expiry. Returns the numbers spent, reset and retry of the reply of take.
  step = function(s, now, hit, max, period)
    if not s.isExpireDone then expire(s, now) end
    s.isExpireDone = true -- all hits of a call of the script have the same now
    local n, member, expiry = hit, nil, nil
    if type(hit) == 'table' then
      n = hit[1]
      if type(hit[2]) == 'number' then
        expiry = hit[2]
      else
        member = 'i' .. hit[2]
      end
    end
    local namedHold = member and find(s, member)
    local retry = 0
    if n < 0 then
      if member then
        if namedHold then remove(s, namedHold) end
      elseif expiry then
        removeAnonymousHold(s, -n, expiry)
      elseif n == -maxHits then -- a reset
        expire(s, math.huge)
      else
        releaseAnonymousSlots(s, -n)
      end
      namedHold = nil
    elseif namedHold then
      retry = -2 -- the hold existed
      if n > 0 then
        remove(s, namedHold)
        add(s, member, now + period, namedHold.slots)
        namedHold = s.newHolds[member]
      end
    elseif s.slots + math.max(n, 1) <= max and s.members < maxMembers then
      if n > 0 then
        local slots = n
        expiry = now + period
        local name = member or string.format('a%d', expiry)
        local sameHold = not member and find(s, name) -- anonymous holds with the same expiry are stored as one hold
        if sameHold then
          remove(s, sameHold)
          slots = n + sameHold.slots
        end
        add(s, name, expiry, slots)
        namedHold = member and s.newHolds[name]
        if not member and s.slots + n > max then
          local nextWait = expiryAfter(s, s.slots + n - max, now) - now
          retry = -2 - nextWait -- see the reply in take.lua
        end
      end
    else
      retry = -1 -- never
      local maxSlots = max - math.max(n, 1) -- the hit passes if at most this number of slots is taken
      if maxSlots >= 0 then retry = expiryAfter(s, math.max(s.slots - maxSlots, 1), now) - now end
    end
    local resetTime = namedHold and namedHold.expiry or s.slots > 0 and expiryAfter(s, 1, now)
    return s.slots, resetTime and resetTime - now or 0, retry
  end,

  -- Writes the changes to Redis. Returns an error message if the write failed.
  save = function(s, key, _, _, ttl)
    if not next(s.newHolds) and not next(s.obsoleteSlots) then return end
    if s.slots == 0 then return errorOf(s.isStored and redis.pcall('DEL', key)) end
    local scores, lastExpiry = { string.format('%d', -s.slots), 'x' }, 0
    for _, hold in pairs(s.newHolds) do
      appendScores(scores, hold)
      lastExpiry = math.max(lastExpiry, hold.expiry)
    end
    -- ZADD comes before ZREM, because the key must exist between two commands.
    local err = runInParts('ZADD', key, scores)
    if err then return err end
    if lastExpiry > 0 and redis.call('PTTL', key) < tonumber(ttl(lastExpiry)) then
      err = errorOf(redis.pcall('PEXPIRE', key, ttl(lastExpiry + expiryStep))) -- with expiryStep, the next writes need no PEXPIRE
      if err then return err end
    end
    local obsoleteMembers = {}
    for member, slots in pairs(s.obsoleteSlots) do
      local hold = s.newHolds[member]
      if not hold then obsoleteMembers[#obsoleteMembers + 1] = member end
      if slots > 1 and (not hold or hold.slots == 1) then obsoleteMembers[#obsoleteMembers + 1] = 'w' .. member end
    end
    return runInParts('ZREM', key, obsoleteMembers)
  end,
}
