#!lua
-- include: _run _check _prompts _buffers
-- EMPTY -> RESERVED: admits one entry, if it can be placed in time whatever the others do; draws its prompt and
-- freezes the prompt's value. The same entry id again gets the same answer, as long as the entry lives; another
-- worker's is GONE.
-- KEYS  [11] the entry; builds prompt:<drawn>, engine:<name>, worker:<incarnation>, buffer:<window>
-- ARGV  [5] entry, worker, engine, Exp(1) for the prompt's return
-- returns OK, prompt, payload, version, deadline, event, value, attempt | ENGINE STALE PAUSED MEMORY FULL NO_PROMPT | GONE
local entry, worker, engine, exponential = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local key = KEYS[FIXED + 1]

local before = redis.call('HMGET', key, 'state', 'prompt', 'version', 'deadline', 'event', 'value', 'attempt',
  'worker')
if before[1] then
  if before[1] == 'RELEASED' or before[1] == 'SURPLUS' or before[8] ~= worker then return reply('GONE') end
  return reply('OK', before[2], redis.call('HGET', prompt_key(before[2]), 'payload'), unpack(before, 3, 7))
end

local e = redis.call('HMGET', RUN .. ':engine:' .. engine, 'state', 'version')
local version = tonumber(e[2])
if e[1] ~= 'ready' or version > run.version then return reply('ENGINE') end
local deadline = version + run.max_staleness
if deadline < run.head then return reply('STALE') end
if run.paused ~= '' or run.stopped ~= '' or redis.call('HGET', RUN .. ':worker:' .. worker, 'drain') == '1' then
  return reply('PAUSED')
end
if run.byte_budget > 0 then
  local trajectories = run.stored + (redis.call('ZCARD', RESERVED) + 1) * run.group_launch
  if trajectories * run.max_trajectory_bytes > run.byte_budget then return reply('MEMORY') end
end
read_window()
if not spare(slacks(), deadline, last) then return reply('FULL') end
local drawn = redis.call('ZPOPMIN', PROMPTS)
if not drawn[1] then return reply('NO_PROMPT') end

local prompt, event = drawn[1], run.event - math.ceil((run.version - version) / run.publish_every)
run.reservations = run.reservations + 1
redis.call('HSET', RUN, 'clock', math.max(run.clock, tonumber(drawn[2])), 'reservations', run.reservations)
redis.call('HINCRBY', prompt_key(prompt), 'visits', 1)
local f = redis.call('HMGET', prompt_key(prompt), 'value', 'attempts', 'lost', 'payload')
local attempt = tonumber(f[2]) + tonumber(f[3]) + 1
redis.call('HSET', key, 'state', 'RESERVED', 'prompt', prompt, 'version', version, 'deadline', deadline, 'event', event,
  'value', f[1], 'worker', worker, 'engine', engine, 'attempt', attempt, 'reserved_ms', now, 'exponential', exponential)
redis.call('ZADD', RESERVED, deadline * SHIFT + run.reservations, entry)
redis.call('ZADD', WORKERS, now + run.lease_ms, worker)
redis.call('ZADD', RUN .. ':worker:' .. worker .. ':entries', now, entry)
due(deadline, 1)
show_window()
record('reserved', 'entry', entry, 'prompt', prompt, 'worker', worker, 'engine', engine, 'version', version,
  'deadline', deadline, 'value', f[1])
return reply('OK', prompt, f[4], version, deadline, event, f[1], attempt)
