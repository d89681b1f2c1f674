-- The whole queue in one script, since a script is what Redis does atomically.
-- KEYS[1] is where everything is kept:
--
--   :m:ID           hash: topic, sandbox, kind, body, due, attempts, error; token while claimed
--   :slots:SANDBOX  hash: "p:KIND" and "c:KIND", the ID of the pending and the claimed message
--   :pending:TOPIC  IDs by due time: pending messages that do not wait
--   :parked:TOPIC   IDs by due time: pending messages that wait for the claimed one
--   :claimed:TOPIC  IDs by the end of their claims
--   :live, :dead    IDs, sorted; :dead:TOPIC the same of one topic
--   :topics         topics that have, or had, live messages
--   :done:TOKEN     a shift that was done; it expires
--
-- ARGV is the command, how often it was sent before without an answer, and its
-- arguments. Times are milliseconds since 1970.

local root = KEYS[1]
local resent = tonumber(ARGV[2]) > 0
local args = {unpack(ARGV, 3)}

local function key(...) return root .. ':' .. table.concat({...}, ':') end
local function number(n) return string.format('%.0f', n) end

-- find returns a message, or nil if there is none.
local function find(id)
  local f = redis.call('HMGET', key('m', id), 'topic', 'sandbox', 'kind', 'due', 'token')
  if not (f[1] and f[2] and f[3] and f[4]) then return nil end
  return {id = id, topic = f[1], sandbox = f[2], kind = f[3], due = f[4], token = f[5], slots = key('slots', f[2])}
end

-- slot returns the ID that has a place, unless its message has lost its content.
local function slot(m, place)
  local id = redis.call('HGET', m.slots, place)
  if not id then return nil end
  if redis.call('EXISTS', key('m', id)) == 1 then return id end
  redis.call('HDEL', m.slots, place)
  return nil
end

local function pending(m) return slot(m, 'p:' .. m.kind) end
local function claimed(m) return slot(m, 'c:' .. m.kind) end

-- enqueue makes m pending; it waits if another is claimed.
local function enqueue(m)
  local list = claimed(m) and 'parked' or 'pending'
  redis.call('HSET', key('m', m.id), 'due', m.due)
  redis.call('HSET', m.slots, 'p:' .. m.kind, m.id)
  redis.call('ZADD', key(list, m.topic), m.due, m.id)
  redis.call('ZADD', key('live'), 0, m.id)
  redis.call('SADD', key('topics'), m.topic)
end

-- dequeue takes a pending m out of the lists.
local function dequeue(m)
  redis.call('ZREM', key('pending', m.topic), m.id)
  redis.call('ZREM', key('parked', m.topic), m.id)
  redis.call('HDEL', m.slots, 'p:' .. m.kind)
end

-- release ends the claim on m, and lets go who waited for it.
local function release(m)
  redis.call('ZREM', key('claimed', m.topic), m.id)
  redis.call('HDEL', m.slots, 'c:' .. m.kind)
  redis.call('HDEL', key('m', m.id), 'token')
  local next = pending(m)
  local n = next and find(next)
  if n and redis.call('ZREM', key('parked', n.topic), n.id) == 1 then
    redis.call('ZADD', key('pending', n.topic), n.due, n.id)
  end
end

local function forget(id)
  redis.call('DEL', key('m', id))
  redis.call('ZREM', key('live'), id)
end

-- row is a message as the other side reads it.
local function row(id)
  local f = redis.call('HMGET', key('m', id), 'body', 'due', 'attempts', 'error')
  return {id, f[1] or '', f[2] or '', f[3] or '', f[4] or ''}
end

-- unique returns the arguments from the given one on, each once.
local function unique(from)
  local seen, list = {}, {}
  for i = from, #args do
    if not seen[args[i]] then
      seen[args[i]] = true
      list[#list + 1] = args[i]
    end
  end
  return list
end

-- stop returns the end of the claim that the pending message waits for. 0: there
-- is none.
local function stop(m)
  local c = claimed(m)
  local holder = c and find(c)
  return holder and tonumber(redis.call('ZSCORE', key('claimed', holder.topic), c)) or 0
end

-- supersede drops claims that ran out and were replaced by a pending message of
-- these topics, or whose own topic is one of them.
local function supersede(topics, now)
  for _, topic in ipairs(topics) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('claimed', topic), '-inf', now)) do
      local m = find(id)
      if m and pending(m) then
        release(m)
        forget(id)
      end
    end
    for _, id in ipairs(redis.call('ZRANGE', key('parked', topic), 0, -1)) do
      local m = find(id)
      if m and stop(m) <= tonumber(now) then
        local c = claimed(m)
        local holder = c and find(c)
        if holder then
          release(holder)
          forget(c)
        else
          redis.call('HDEL', m.slots, 'c:' .. m.kind)
          redis.call('ZREM', key('parked', topic), id)
          redis.call('ZADD', key('pending', topic), m.due, id)
        end
      end
    end
  end
end

-- due returns what may be claimed, oldest first, and the IDs of messages that
-- have lost their content; it takes those out of the lists.
local function due(topics, now, n)
  local found, broken = {}, {}
  local function look(list, ids)
    for _, id in ipairs(ids) do
      local m = find(id)
      if m then
        found[#found + 1] = m
      else
        redis.call('ZREM', list, id)
        forget(id)
        broken[#broken + 1] = {id, '', '', '', ''}
      end
    end
  end
  for _, topic in ipairs(topics) do
    local list = key('claimed', topic)
    look(list, redis.call('ZRANGEBYSCORE', list, '-inf', now))
    list = key('pending', topic)
    look(list, redis.call('ZRANGEBYSCORE', list, '-inf', now, 'LIMIT', 0, n))
  end
  table.sort(found, function(a, b)
    local x, y = tonumber(a.due), tonumber(b.due)
    if x ~= y then return x < y end
    return a.id < b.id
  end)
  return found, broken
end

-- before returns what a call with the same token claimed whose answer was lost.
local function before(topics, token)
  local rows = {}
  for _, topic in ipairs(topics) do
    for _, id in ipairs(redis.call('ZRANGE', key('claimed', topic), 0, -1)) do
      if redis.call('HGET', key('m', id), 'token') == token then rows[#rows + 1] = row(id) end
    end
  end
  return rows
end

-- held returns the claimed message if the token is its claim's.
local function held(id, token)
  local m = find(id)
  if m and m.token and m.token == token then return m end
  return nil
end

local function fail(m, cause)
  redis.call('HINCRBY', key('m', m.id), 'attempts', 1)
  redis.call('HSET', key('m', m.id), 'error', cause)
end

local function unbury(m)
  redis.call('ZREM', key('dead'), m.id)
  redis.call('ZREM', key('dead', m.topic), m.id)
end

local commands = {}

function commands.schedule(id, topic, sandbox, kind, at, body)
  if resent and redis.call('EXISTS', key('m', id)) == 1 then return 'ok' end
  local m = {id = id, topic = topic, sandbox = sandbox, kind = kind, due = at, slots = key('slots', sandbox)}
  local old = pending(m)
  if old then
    dequeue(find(old))
    forget(old)
  end
  redis.call('HSET', key('m', id), 'topic', topic, 'sandbox', sandbox, 'kind', kind, 'body', body, 'attempts', 0, 'error', '')
  enqueue(m)
  return 'ok'
end

function commands.reschedule(sandbox, kind, at)
  local id = redis.call('HGET', key('slots', sandbox), 'p:' .. kind)
  local m = id and find(id)
  if not m then return 'none' end
  dequeue(m)
  m.due = at
  enqueue(m)
  return 'ok'
end

function commands.cancel(sandbox, ...)
  local wanted, all = {}, select('#', ...) == 0
  for _, kind in ipairs({...}) do wanted[kind] = true end
  local slots = redis.call('HGETALL', key('slots', sandbox))
  local count = 0
  for _, take in ipairs({'p', 'c'}) do -- the pending ones first, so that none is let go
    for i = 1, #slots, 2 do
      local kind, id = string.sub(slots[i], 3), slots[i + 1]
      if string.sub(slots[i], 1, 1) == take and (all or wanted[kind]) then
        local m = find(id)
        if m then
          if take == 'p' then dequeue(m) else release(m) end
          count = count + 1
        else
          redis.call('HDEL', key('slots', sandbox), slots[i])
        end
        forget(id)
      end
    end
  end
  return count
end

function commands.claim(now, n, until_, token)
  local topics = unique(5)
  if resent then
    local rows = before(topics, token)
    if #rows > 0 then return rows end
  end
  supersede(topics, now)
  local found, rows = due(topics, now, n)
  for i = 1, math.min(tonumber(n), #found) do
    local m = found[i]
    if pending(m) == m.id then dequeue(m) end
    redis.call('HSET', m.slots, 'c:' .. m.kind, m.id)
    redis.call('ZADD', key('claimed', m.topic), until_, m.id)
    redis.call('HSET', key('m', m.id), 'token', token)
    rows[#rows + 1] = row(m.id)
  end
  return rows
end

function commands.next()
  local first
  local function at(time)
    if time and (not first or time < first) then first = time end
  end
  for _, topic in ipairs(unique(1)) do
    at(tonumber(redis.call('ZRANGE', key('pending', topic), 0, 0, 'WITHSCORES')[2]))
    at(tonumber(redis.call('ZRANGE', key('claimed', topic), 0, 0, 'WITHSCORES')[2]))
    for _, id in ipairs(redis.call('ZRANGE', key('parked', topic), 0, -1)) do
      local m = find(id)
      if m then at(stop(m)) end
    end
  end
  return first and number(first) or ''
end

function commands.extend(id, token, until_)
  local m = held(id, token)
  if not m then return 'lost' end
  redis.call('ZADD', key('claimed', m.topic), until_, id)
  return 'ok'
end

function commands.complete(id, token)
  local m = held(id, token)
  if not m then return 'lost' end
  release(m)
  forget(id)
  return 'ok'
end

function commands.retry(id, token, at, cause)
  local m = held(id, token)
  if not m then return 'lost' end
  release(m)
  if pending(m) then
    forget(id)
    return 'ok'
  end
  fail(m, cause)
  m.due = at
  enqueue(m)
  return 'ok'
end

function commands.bury(id, token, cause, max)
  local m = held(id, token)
  if not m then return 'lost' end
  release(m)
  fail(m, cause)
  redis.call('ZREM', key('live'), id)
  redis.call('ZADD', key('dead'), 0, id)
  redis.call('ZADD', key('dead', m.topic), 0, id)
  while redis.call('ZCARD', key('dead', m.topic)) > tonumber(max) do
    local old = redis.call('ZPOPMIN', key('dead', m.topic))[1]
    redis.call('ZREM', key('dead'), old)
    redis.call('DEL', key('m', old))
  end
  return 'ok'
end

function commands.revive(id, at)
  local m = redis.call('ZSCORE', key('dead'), id) and find(id)
  if not m then return 'none' end
  if pending(m) or claimed(m) then return 'taken' end
  unbury(m)
  redis.call('HSET', key('m', id), 'attempts', 0)
  m.due = at
  enqueue(m)
  return 'ok'
end

function commands.drop(id)
  if not redis.call('ZSCORE', key('dead'), id) then return 'none' end
  local m = find(id)
  if m then unbury(m) end
  redis.call('ZREM', key('dead'), id)
  redis.call('DEL', key('m', id))
  return 'ok'
end

-- list looks at so many messages at most, and returns the ID to go on after, or
-- '' at the end.
function commands.list(set, after, limit, scan, topic, sandbox, kind)
  local from = after == '' and '-' or '(' .. after
  local ids = redis.call('ZRANGEBYLEX', key(set), from, '+', 'LIMIT', 0, scan)
  local rows = {''}
  for _, id in ipairs(ids) do
    local m = find(id)
    if m and (topic == '' or topic == m.topic) and (sandbox == '' or sandbox == m.sandbox) and (kind == '' or kind == m.kind) then
      rows[#rows + 1] = row(id)
      if #rows > tonumber(limit) then return rows end
    end
  end
  if #ids == tonumber(scan) then rows[1] = ids[#ids] end
  return rows
end

function commands.stats()
  local waiting, taken, oldest = 0, 0, nil
  for _, topic in ipairs(redis.call('SMEMBERS', key('topics'))) do
    local c = redis.call('ZCARD', key('claimed', topic))
    local p = 0
    for _, list in ipairs({'pending', 'parked'}) do
      p = p + redis.call('ZCARD', key(list, topic))
      local at = tonumber(redis.call('ZRANGE', key(list, topic), 0, 0, 'WITHSCORES')[2])
      if at and (not oldest or at < oldest) then oldest = at end
    end
    waiting, taken = waiting + p, taken + c
    if p + c == 0 then redis.call('SREM', key('topics'), topic) end
  end
  return {number(waiting), number(taken), number(redis.call('ZCARD', key('dead'))), oldest and number(oldest) or ''}
end

function commands.shift(by, token)
  if not redis.call('SET', key('done', token), 1, 'NX', 'PX', 600000) then return 'ok' end
  by = tonumber(by)
  for _, topic in ipairs(unique(3)) do
    for _, list in ipairs({'pending', 'parked', 'claimed'}) do
      local all = redis.call('ZRANGE', key(list, topic), 0, -1, 'WITHSCORES')
      for i = 1, #all, 2 do
        local m = find(all[i])
        if m then
          redis.call('ZADD', key(list, topic), number(tonumber(all[i + 1]) + by), m.id)
          redis.call('HSET', key('m', m.id), 'due', number(tonumber(m.due) + by))
        end
      end
    end
  end
  return 'ok'
end

return commands[ARGV[1]](unpack(args))
