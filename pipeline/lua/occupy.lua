#!lua flags=allow-oom
-- include: _run _prompts _buffers _entries
-- RESERVED -> OCCUPIED: a finished entry takes the earliest place that leaves all the others placeable.
-- Sent as MULTI [XADD stream id payload ...; this]. MULTI does not roll back, so a refusal deletes the payloads that
-- this very call brought (ids newer than last_id), and nothing else.
-- KEYS  [7] the entry, [8] its worker's stream; builds prompt:<its>, worker:<its>, buffer:<window>, entry:<surplus>
-- ARGV  [5] entry, worker, prompt, version, oldest segment's version, ids ("1-0 2-0"), [11...] outcome of each
--       member; then, if the run filters, what it filters by; then, only where a full Redis refuses the MULTI, payloads
-- returns PLACED, buffer | SURPLUS | FILTERED | GONE | OLD | BAD, what, expected | ORDER, last_id
local entry, worker, ids = ARGV[5], ARGV[6], ARGV[10]
local key, stream = KEYS[FIXED + 1], KEYS[FIXED + 2]
local e = redis.call('HMGET', key, 'state', 'prompt', 'version', 'deadline', 'event', 'ids', 'placed', 'exponential',
  'worker')
local state, prompt, version, deadline, placed, owner = e[1], e[2], tonumber(e[3]), tonumber(e[4]), e[7], e[9]

local function first_answer()
  if placed then return reply('PLACED', tonumber(placed)) end
  if e[6] and (state == 'SURPLUS' or state == 'FILTERED') then return reply(state) end
  return reply('GONE')
end
if e[6] == ids and owner == worker then -- sent again; its payloads stay, unless they are needed no longer
  local answer = trouble() and reply(trouble()) or first_answer()
  if state ~= 'OCCUPIED' and state ~= 'CONSUMED' then
    for id in string.gmatch(ids, '%S+') do redis.call('XDEL', stream, id) end
    forget_worker(worker)
  end
  return answer
end

local function number(id) return tonumber(string.match(id, '^%d+')) end -- our ids are n-0
local w = redis.call('HMGET', worker_key(worker), 'last_id', 'stored')
local before, newest, count, ordered = number(w[1] or '0-0'), 0, 0, true
for id in string.gmatch(ids, '%S+') do
  ordered = ordered and number(id) > math.max(before, newest)
  newest, count = math.max(before, newest, number(id)), count + 1
end
local function refuse(...)
  redis.call('HSET', worker_key(worker), 'last_id', newest .. '-0')
  for id in string.gmatch(ids, '%S+') do
    if number(id) > before then redis.call('XDEL', stream, id) end
  end
  forget_worker(worker)
  return reply(...)
end
if not ordered then return refuse('ORDER', newest .. '-0') end
if trouble() then return refuse(trouble()) end
if state ~= 'RESERVED' or owner ~= worker then refuse('GONE') return first_answer() end
if prompt ~= ARGV[7] then return refuse('BAD', 'prompt', prompt) end
if version ~= tonumber(ARGV[8]) then return refuse('BAD', 'version', version) end
if tonumber(ARGV[9]) < version then return refuse('OLD') end
local filters = run.filter_metric ~= '0' and run.group_size > 1
local outcomes, members, numbers = {}, count, 10 + (filters and 2 * count or count)
for i = 11, numbers do outcomes[#outcomes + 1] = tonumber(ARGV[i]) end
if members ~= run.group_size or #outcomes ~= numbers - 10 then return refuse('BAD', 'group', run.group_size) end
local alike = filters
for i = members + 1, #outcomes do alike = alike and outcomes[i] == outcomes[members + 1] end
for i = members + 1, #outcomes do outcomes[i] = nil end

open_window()
local slack, place = slacks(), nil
for b = run.head, deadline do
  if occupied[b] < run.batch_size and spare(slack, b, deadline - 1) then place = b break end
end
for b = run.head, deadline do -- only with B' > B: one that is finished goes before those that are not
  if not place and occupied[b] < run.batch_size then place = b end
end
unreserve(entry, worker, deadline)
finish_prompt(prompt, tonumber(e[5]), outcomes, tonumber(e[8]))

-- finished, but of no use
local function leave(outcome)
  redis.call('HSET', key, 'ids', ids, 'finished_ms', now)
  bury(entry, outcome, string.lower(outcome))
  redis.call('HINCRBY', COUNTERS, string.lower(outcome), 1)
  record(string.lower(outcome), 'entry', entry, 'prompt', prompt)
  settle('consecutive_failures', 0)
  return refuse(outcome)
end
if alike then
  local filtered = redis.call('HINCRBY', RUN, 'consecutive_filtered', 1)
  if filtered >= tonumber(field('max_consecutive_filtered')) then
    stop(filtered .. ' groups in a row were filtered: all their members have the same ' .. run.filter_metric .. GO_ON)
  end
  return leave('FILTERED')
end

if not place then return leave('SURPLUS') end

local finished = run.finished + 1
redis.call('HSET', key, 'state', 'OCCUPIED', 'buffer', place, 'placed', place, 'ids', ids, 'finished_ms', now)
redis.call('HSET', worker_key(worker), 'last_id', newest .. '-0', 'stored', (tonumber(w[2]) or 0) + count)
if ARGV[numbers + 1] then
  local payload = numbers
  for id in string.gmatch(ids, '%S+') do
    payload = payload + 1
    redis.call('XADD', stream, id, 'payload', ARGV[payload], 'entry', entry)
  end
end
put(entry, version * SHIFT + finished, place)
record('placed', 'entry', entry, 'prompt', prompt, 'version', version, 'buffer', place, 'oldest', ARGV[9])
settle('finished', finished, 'stored', run.stored + count, 'consecutive_failures', 0, 'consecutive_filtered', 0)
return reply('PLACED', place)
