#!lua flags=allow-oom
-- include: _call
-- RESERVED -> OCCUPIED: a finished entry takes the earliest place that leaves all the others placeable.
-- Sent as MULTI [XADD stream id payload ...; this]. MULTI does not roll back, so a refusal deletes the payloads that
-- this very call brought (ids newer than last_id), and nothing else.
-- KEYS  [7] the entry, [8] its worker's stream; builds prompt:<its>, worker:<its>, buffer:<window>, entry:<surplus>
-- ARGV  [5] entry, worker, prompt, version, oldest segment's version, ids ("1-0 2-0"), [11...] outcome of each
--       member; then, if the run filters, what it filters by; then, only where a full Redis refuses the MULTI, payloads
-- returns PLACED, buffer | SURPLUS | FILTERED | GONE | OLD | BAD, what, expected | ORDER, last_id
local found = redis.call('HMGET', RUN, 'rules', 'joined', 'version', 'head', 'window', 'clock', 'finished', 'stored')
-- include: _run _workers _race _evidence _buffers
local entry, worker, ids = ARGV[5], ARGV[6], ARGV[10]
local key, stream, worker_hash = KEYS[FIXED + 1], KEYS[FIXED + 2], worker_key(worker)
local e = redis.call('HMGET', key, 'state', 'worker', 'prompt', 'version', 'event', 'exponential')
local state, owner, prompt, version = e[1], e[2], e[3], e[4]

local first_ids = state ~= 'RESERVED' and redis.call('HGET', key, 'ids')
local function first_answer()
  local places = redis.call('HMGET', key, 'placed', 'buffer')
  local place = places[1] or places[2] -- `placed` is written when the entry is moved
  if place then return reply('PLACED', tonumber(place)) end
  if first_ids and (state == 'SURPLUS' or state == 'FILTERED') then return reply(state) end
  return reply('GONE')
end
if first_ids == ids and owner == worker then -- sent again; its payloads stay, unless they are needed no longer
  local answer = trouble() and reply(trouble()) or first_answer()
  if state ~= 'OCCUPIED' and state ~= 'CONSUMED' then
    for id in string.gmatch(ids, '%S+') do redis.call('XDEL', stream, id) end
    forget_worker(worker)
  end
  return answer
end

local function number(id) return string.sub(id, 1, -3) + 0 end -- our ids are n-0
local last_id = redis.call('HGET', worker_hash, 'last_id') or '0-0'
local before = number(last_id)
local newest, members, ordered = before, 0, true
for id in string.gmatch(ids, '%S+') do
  local n = number(id)
  ordered = ordered and n > newest
  if n > newest then newest, last_id = n, id end
  members = members + 1
end
local function refuse(...)
  redis.call('HSET', worker_hash, 'last_id', last_id)
  for id in string.gmatch(ids, '%S+') do
    if number(id) > before then redis.call('XDEL', stream, id) end
  end
  forget_worker(worker)
  return reply(...)
end
if not ordered then return refuse('ORDER', last_id) end
if trouble() then return refuse(trouble()) end
if state ~= 'RESERVED' or owner ~= worker then refuse('GONE') return first_answer() end
if prompt ~= ARGV[7] then return refuse('BAD', 'prompt', prompt) end
if version ~= ARGV[8] then return refuse('BAD', 'version', version + 0) end
if ARGV[9] - version < 0 then return refuse('OLD') end
local filters = run.filter_metric ~= '0' and run.group_size > 1
local outcomes, numbers = {}, 10 + (filters and 2 * members or members)
for i = 11, numbers do outcomes[#outcomes + 1] = tonumber(ARGV[i]) end
if members ~= run.group_size or #outcomes ~= numbers - 10 then return refuse('BAD', 'group', run.group_size) end
local alike = filters
for i = members + 1, #outcomes do alike = alike and outcomes[i] == outcomes[members + 1] end
for i = members + 1, #outcomes do outcomes[i] = nil end

open_window()
find_slack()
local deadline, place = version + run.max_staleness, nil
for b = deadline, run.head, -1 do
  if b < deadline and window[b].slack < 1 then break end
  if window[b].occupied < run.batch_size then place = b end
end
if not place then -- only with B' > B: one that is finished goes before those that are not
  for b = deadline, run.head, -1 do
    if window[b].occupied < run.batch_size then place = b end
  end
end
redis.call('ZREM', RESERVED, entry)
redis.call('ZREM', worker_hash .. ':entries', entry)
count_due(deadline, -1)
finish_prompt(prompt, e[5] + 0, outcomes, e[6])

local finished, useless = found[7] + 1, alike and 'FILTERED' or not place and 'SURPLUS'
if not useless then
  redis.call('HSET', key, 'state', 'OCCUPIED', 'buffer', place, 'ids', ids, 'finished_ms', now)
  redis.call('HSET', worker_hash, 'last_id', last_id)
  if ARGV[numbers + 1] then
    local payload = numbers
    for id in string.gmatch(ids, '%S+') do
      payload = payload + 1
      redis.call('XADD', stream, id, 'payload', ARGV[payload], 'entry', entry)
    end
  end
  put(entry, version * SHIFT + finished, place)
  record('placed', 'entry', entry, 'prompt', prompt, 'version', version, 'buffer', place, 'oldest', ARGV[9])
  if filters then redis.call('HSET', RUN, 'consecutive_filtered', 0) end
end

-- Mostly that is all. Only a READY head has surplus, and only an open place before an OCCUPIED entry pulls forward.
local settled = not useless and window[run.head].occupied < run.batch_size
for b = run.head, last - 1 do
  settled = settled and (window[b].occupied >= run.batch_size or window[b + 1].occupied == 0)
end
if settled then
  show_window('finished', finished, 'stored', found[8] + members, 'consecutive_failures', 0)
  return reply('PLACED', place)
end

-- What follows for all others; reached by few calls, and its ten functions cost the others nothing here.
-- include: _prompts _entries
if not useless then
  settle('finished', finished, 'stored', found[8] + members, 'consecutive_failures', 0)
  return reply('PLACED', place)
end

local lower = string.lower(useless)
if alike then
  local filtered = redis.call('HINCRBY', RUN, 'consecutive_filtered', 1)
  if filtered >= tonumber(field('max_consecutive_filtered')) then
    stop(filtered .. ' groups in a row were filtered: all their members have the same ' .. run.filter_metric .. GO_ON)
  end
end
redis.call('HSET', key, 'ids', ids, 'finished_ms', now)
bury(entry, useless, lower)
redis.call('HINCRBY', COUNTERS, lower, 1)
record(lower, 'entry', entry, 'prompt', prompt)
settle('consecutive_failures', 0)
return refuse(useless)
