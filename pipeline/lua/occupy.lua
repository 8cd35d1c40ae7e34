#!lua flags=allow-oom
-- include: _run _prompts _buffers _entries
-- RESERVED -> OCCUPIED: a finished entry takes the earliest place that leaves all the others placeable.
-- Sent as MULTI [XADD stream id payload ...; this]. MULTI does not roll back, so a refusal deletes the payloads that
-- this very call brought (ids newer than last_id), and nothing else.
-- KEYS  [11] the entry, [12] its worker's stream; builds prompt:<its>, worker:<its>, buffer:<window>, entry:<surplus>
-- ARGV  [5] entry, worker, prompt, version, oldest segment's version, ids ("1-0 2-0"), [11...] outcomes
-- returns PLACED, buffer | SURPLUS | GONE | OLD | BAD, what | ORDER, last_id
local entry, worker, ids = ARGV[5], ARGV[6], ARGV[10]
local key, stream = KEYS[FIXED + 1], KEYS[FIXED + 2]
local e = redis.call('HMGET', key, 'state', 'prompt', 'version', 'deadline', 'event', 'ids', 'placed', 'exponential',
  'worker')
local state, prompt, version, deadline, placed, owner = e[1], e[2], tonumber(e[3]), tonumber(e[4]), e[7], e[9]

local function first_answer()
  if placed then return reply('PLACED', tonumber(placed)) end
  if state == 'SURPLUS' and e[6] then return reply('SURPLUS') end
  return reply('GONE')
end
local function refuse(answer)
  for id in string.gmatch(ids, '%S+') do redis.call('XDEL', stream, id) end
  forget_worker(worker)
  return answer
end
if e[6] == ids and owner == worker then -- sent again; its payloads stay, unless they are needed no longer
  local answer = trouble() and reply(trouble()) or first_answer()
  return (state == 'OCCUPIED' or state == 'CONSUMED') and answer or refuse(answer)
end

local function number(id) return tonumber(string.match(id, '^%d+')) end -- our ids are n-0
local newest = redis.call('HGET', worker_key(worker), 'last_id') or '0-0'
local new, count = newest, 0
for id in string.gmatch(ids, '%S+') do
  if number(id) <= number(new) then return reply('ORDER', newest) end
  new, count = id, count + 1
end

redis.call('HSET', worker_key(worker), 'last_id', new)
if trouble() then return refuse(reply(trouble())) end
if state ~= 'RESERVED' or owner ~= worker then return refuse(first_answer()) end
if prompt ~= ARGV[7] then return refuse(reply('BAD', 'prompt', prompt)) end
if version ~= tonumber(ARGV[8]) then return refuse(reply('BAD', 'version', version)) end
if tonumber(ARGV[9]) < version then return refuse(reply('OLD')) end
local outcomes = {}
for i = 11, #ARGV do
  outcomes[#outcomes + 1] = tonumber(ARGV[i])
end
if #outcomes ~= run.group_size or count ~= run.group_size then return refuse(reply('BAD', 'group', run.group_size)) end

read_window()
local slack, place = slacks(), nil
for b = run.head, deadline do
  if window[b].occupied < run.batch_size and spare(slack, b, deadline - 1) then place = b break end
end
for b = run.head, deadline do -- only with B' > B: one that is finished goes before those that are not
  if not place and window[b].occupied < run.batch_size then place = b end
end

unreserve(entry, worker, deadline)
finish_prompt(prompt, tonumber(e[5]), outcomes, tonumber(e[8]))
if run.consecutive_failures > 0 then redis.call('HSET', RUN, 'consecutive_failures', 0) end
if not place then
  redis.call('HSET', key, 'ids', ids, 'finished_ms', now)
  bury(entry, 'SURPLUS', 'surplus')
  redis.call('HINCRBY', COUNTERS, 'surplus', 1)
  record('surplus', 'entry', entry, 'prompt', prompt)
  settle()
  return refuse(reply('SURPLUS'))
end
redis.call('HSET', key, 'state', 'OCCUPIED', 'buffer', place, 'placed', place, 'ids', ids, 'finished_ms', now)
run.finished = run.finished + 1
put(entry, version * SHIFT + run.finished, place)
redis.call('HINCRBY', worker_key(worker), 'stored', count)
redis.call('HSET', RUN, 'finished', run.finished, 'stored', run.stored + count)
redis.call('HINCRBY', COUNTERS, 'placed', 1)
record('placed', 'entry', entry, 'prompt', prompt, 'version', version, 'buffer', place)
settle()
return reply('PLACED', place)
