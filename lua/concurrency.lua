-- concurrency computes the same as limit.concurrency, which documents the algorithm.
--
-- The holds are stored as a sorted set. A member has one of these names:
--
--   i<id>        a named hold; its score is its mark
--   a<expiry>    an anonymous hold; its score is its mark, negative
--   w<member>    the slots of a hold with several slots, negative
--   x            the slots of all holds, negative
--
-- A mark is twice the expiry in microseconds, plus 1 if the hold has several slots. Marks are exact until the year
-- 2112. All marks of anonymous holds are below all other negative scores.
--
-- State: until save, live has the new and changed holds by member. gone has the slots of the holds in Redis that
-- have changed or ended, by member.

local maxEntries, resetHits = 100000, 2 ^ 34 -- as limit's maxHoldEntries and MaxHits
local lowestOther = -2 ^ 34                  -- all marks of anonymous holds are below

local function entriesOf(hold) return hold.slots > 1 and 2 or 1 end

local function holdOf(s, member, score)
  local mark = math.abs(tonumber(score))
  local hold = { member = member, expiry = math.floor(mark / 2), slots = 1, stored = true }
  if mark % 2 == 1 then hold.slots = -(tonumber(redis.call('ZSCORE', s.key, 'w' .. member) or -1)) end
  return hold
end

-- Returns the list of anonymous or of named holds. stored has the holds that were fetched, and added has new holds.
-- Both start with the hold that expires first. stored[first] is the first one that may still exist.
local function newList(command, from, to)
  return { command = command, from = from, to = to, stored = {}, added = {}, first = 1, page = 8 }
end

-- Returns stored hold i of list, or nil.
local function storedAt(s, list, i)
  while i > #list.stored and not list.complete do
    local reply = redis.call(list.command, s.key, list.from, list.to, 'WITHSCORES', 'LIMIT', #list.stored, list.page)
    for j = 1, #reply, 2 do list.stored[#list.stored + 1] = holdOf(s, reply[j], reply[j + 1]) end
    list.complete = #reply < 2 * list.page
    list.page = 2 * list.page
  end
  return list.stored[i]
end

-- Returns the place of the next stored hold from i on that still exists.
local function nextStored(s, list, i)
  local hold = storedAt(s, list, i)
  while hold and s.gone[hold.member] do
    i = i + 1
    hold = storedAt(s, list, i)
  end
  return i, hold
end

-- Returns the hold of list that expires first, or nil.
local function firstOf(s, list)
  local stored
  list.first, stored = nextStored(s, list, list.first)
  local added = list.added[1]
  if not stored or added and added.expiry < stored.expiry then return added end
  return stored
end

local function listOf(s, member) return member:byte() == 97 and s.anonymous or s.named end -- 97 is a

local function remove(s, hold)
  s.slots, s.entries = s.slots - hold.slots, s.entries - entriesOf(hold)
  if hold.stored then
    s.gone[hold.member] = hold.slots
    return
  end
  s.live[hold.member] = nil
  local added = listOf(s, hold.member).added
  for i = 1, #added do
    if added[i] == hold then return table.remove(added, i) end
  end
end

local function add(s, member, expiry, slots)
  local hold = { member = member, expiry = expiry, slots = slots }
  s.slots, s.entries = s.slots + slots, s.entries + entriesOf(hold)
  s.live[member] = hold
  local added = listOf(s, member).added
  local i = #added
  while i > 0 and added[i].expiry > expiry do i = i - 1 end
  table.insert(added, i + 1, hold)
end

-- Returns the hold of member, or nil.
local function find(s, member)
  if s.live[member] then return s.live[member] end
  if s.gone[member] then return nil end
  local score = redis.call('ZSCORE', s.key, member)
  return score and holdOf(s, member, score)
end

-- Does what holdSet.expire does.
local function expire(s, now)
  for _, list in ipairs({ s.anonymous, s.named }) do
    local hold = firstOf(s, list)
    while hold and hold.expiry <= now do
      remove(s, hold)
      hold = firstOf(s, list)
    end
  end
end

-- Does what holdSet.takeBack does: removes slots of the anonymous hold with this expiry.
local function takeBack(s, slots, expiry)
  local hold = find(s, string.format('a%d', expiry))
  if not hold then return end
  remove(s, hold)
  if hold.slots > slots then add(s, hold.member, expiry, hold.slots - slots) end
end

-- Removes slots of anonymous holds.
local function releaseAnonymous(s, slots)
  local hold = firstOf(s, s.anonymous)
  while hold and slots > 0 do
    remove(s, hold)
    if hold.slots > slots then add(s, hold.member, hold.expiry, hold.slots - slots) end
    slots = slots - hold.slots
    hold = firstOf(s, s.anonymous)
  end
end

-- Does what holdSet.expiryAfter does. If other programs have removed holds, it returns the last expiry, or now.
local function expiryAfter(s, slots, now)
  local places = {}
  for _, list in ipairs({ s.anonymous, s.named }) do
    places[#places + 1] = { list = list, i = list.first }
    places[#places + 1] = { added = list.added, i = 1 }
  end
  local expiry = now
  while slots > 0 do
    local firstPlace, firstHold
    for _, place in ipairs(places) do
      local hold
      if place.list then
        place.i, hold = nextStored(s, place.list, place.i)
      else
        hold = place.added[place.i]
      end
      if hold and (not firstHold or hold.expiry < firstHold.expiry) then firstPlace, firstHold = place, hold end
    end
    if not firstHold then break end
    firstPlace.i = firstPlace.i + 1
    expiry, slots = firstHold.expiry, slots - firstHold.slots
  end
  return expiry
end

-- Appends the scores and members of hold.
local function appendScores(scores, hold)
  local hasSeveralSlots = hold.slots > 1
  local mark = 2 * hold.expiry + (hasSeveralSlots and 1 or 0)
  scores[#scores + 1] = string.format('%d', hold.member:byte() == 97 and -mark or mark)
  scores[#scores + 1] = hold.member
  if hasSeveralSlots then
    scores[#scores + 1] = string.format('%d', -hold.slots)
    scores[#scores + 1] = 'w' .. hold.member
  end
end

return {
  -- Returns the state of key. The state has err if the value of key is no set of holds.
  open = function(key)
    local score, size = redis.pcall('ZSCORE', key, 'x'), redis.pcall('ZCARD', key)
    local err = errorOf(score) or errorOf(size)
    if err then return { err = err } end
    if size > 0 and not score then return { err = 'WRONGTYPE the key holds another sorted set' } end
    return {
      key = key, slots = score and -tonumber(score) or 0, entries = math.max(size - 1, 0),
      isStored = size > 0, live = {}, gone = {},
      anonymous = newList('ZREVRANGEBYSCORE', string.format('(%d', lowestOther), '-inf'),
      named = newList('ZRANGEBYSCORE', '(0', '+inf'),
    }
  end,

  -- hits is the n of take.lua.
  step = function(s, now, hits, max, period)
    if not s.expired then expire(s, now) end
    s.expired = true -- all hits of a call have the same now
    local n, member, expiry = hits, nil, nil
    if type(hits) == 'table' then
      n = hits[1]
      if type(hits[2]) == 'number' then
        expiry = hits[2]
      else
        member = 'i' .. hits[2]
      end
    end
    local existing = member and find(s, member)
    local retry = 0
    if n < 0 then
      if member then
        if existing then remove(s, existing) end
      elseif expiry then
        takeBack(s, -n, expiry)
      elseif n == -resetHits then
        expire(s, math.huge)
      else
        releaseAnonymous(s, -n)
      end
      existing = nil
    elseif existing then
      retry = -2
      if n > 0 then
        remove(s, existing)
        add(s, member, now + period, existing.slots)
        existing = s.live[member]
      end
    elseif s.slots + math.max(n, 1) <= max and s.entries < maxEntries then
      if n > 0 then
        local slots = n
        expiry = now + period
        local name = member or string.format('a%d', expiry)
        local sameHold = not member and find(s, name) -- anonymous holds with one expiry are one hold
        if sameHold then
          remove(s, sameHold)
          slots = n + sameHold.slots
        end
        add(s, name, expiry, slots)
        existing = member and s.live[name]
        if not member and s.slots + n > max then retry = -2 - expiryAfter(s, s.slots + n - max, now) + now end
      end
    else
      retry = -1
      local maxTaken = max - math.max(n, 1)
      if maxTaken >= 0 then retry = expiryAfter(s, math.max(s.slots - maxTaken, 1), now) - now end
    end
    local resetTime = existing and existing.expiry or s.slots > 0 and expiryAfter(s, 1, now)
    return s.slots, resetTime and resetTime - now or 0, retry
  end,

  -- Writes what has changed. Returns an error message if the write failed.
  save = function(s, key, raw, period, ttl)
    if not next(s.live) and not next(s.gone) then return end
    if s.slots == 0 then return errorOf(s.isStored and redis.pcall('DEL', key)) end
    local scores, last = { string.format('%d', -s.slots), 'x' }, 0
    for _, hold in pairs(s.live) do
      appendScores(scores, hold)
      last = math.max(last, hold.expiry)
    end
    -- The key must not be absent between two commands, so the removals come last.
    local err = runInParts('ZADD', key, scores)
    if err then return err end
    if last > 0 and redis.call('PTTL', key) < tonumber(ttl(last)) then
      err = errorOf(redis.pcall('PEXPIRE', key, ttl(last + expiryStep))) -- so that most writes need no PEXPIRE
      if err then return err end
    end
    local obsolete = {}
    for member, slots in pairs(s.gone) do
      local hold = s.live[member]
      if not hold then obsolete[#obsolete + 1] = member end
      if slots > 1 and (not hold or hold.slots == 1) then obsolete[#obsolete + 1] = 'w' .. member end
    end
    return runInParts('ZREM', key, obsolete)
  end,
}
