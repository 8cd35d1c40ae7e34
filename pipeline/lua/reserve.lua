#!lua
-- include: _run _check _buffers
-- EMPTY -> RESERVED: admits one entry, if it can be placed in time whatever the others do; draws its prompt and
-- freezes the prompt's value. The same entry id again gets the same answer, as long as the entry lives; another
-- worker's is GONE.
-- KEYS  [7] the entry; builds prompt:<drawn>, engine:<name>, worker:<incarnation>, buffer:<window>
-- ARGV  [5] entry, worker, engine, Exp(1) for the prompt's return
-- returns OK, prompt, payload, version, deadline, event, value, attempt | ENGINE STALE PAUSED MEMORY FULL NO_PROMPT | GONE
local entry, worker, engine, exponential = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local key, worker_key, prompt_key = KEYS[FIXED + 1], RUN .. ':worker:' .. worker, RUN .. ':prompt:'

local state = redis.call('HGET', key, 'state')
if state then
  local e = redis.call('HMGET', key, 'prompt', 'version', 'deadline', 'event', 'value', 'attempt', 'worker')
  local lives = state == 'RESERVED' or state == 'OCCUPIED' or state == 'CONSUMED'
  if not lives or e[7] ~= worker then return reply('GONE') end
  return reply('OK', e[1], redis.call('HGET', prompt_key .. e[1], 'payload'), unpack(e, 2, 6))
end

local e = redis.call('HMGET', RUN .. ':engine:' .. engine, 'state', 'version', 'event')
local version, event = tonumber(e[2]), e[3]
if e[1] ~= 'ready' or version > run.version then return reply('ENGINE') end
local deadline = version + run.max_staleness
if deadline < run.head then return reply('STALE') end
local w = redis.call('HMGET', worker_key, 'drain', 'lease')
if run.paused ~= '' or run.stopped ~= '' or w[1] == '1' then return reply('PAUSED') end
if run.byte_budget > 0 then
  local trajectories = run.stored + (redis.call('ZCARD', RESERVED) + 1) * run.group_launch
  if trajectories * run.max_trajectory_bytes > run.byte_budget then return reply('MEMORY') end
end
open_window()
if not spare(slacks(), deadline, last) then return reply('FULL') end
local drawn = redis.call('ZPOPMIN', PROMPTS)
if not drawn[1] then return reply('NO_PROMPT') end

local prompt = drawn[1]
local p = redis.call('HMGET', prompt_key .. prompt, 'value', 'attempts', 'lost', 'payload')
local attempt = p[2] + p[3] + 1
redis.call('HSET', key, 'state', 'RESERVED', 'prompt', prompt, 'version', version, 'deadline', deadline, 'event', event,
  'value', p[1], 'worker', worker, 'engine', engine, 'attempt', attempt, 'reserved_ms', now, 'exponential', exponential)
redis.call('ZADD', RESERVED, deadline * SHIFT + run.reservations + 1, entry)
redis.call('ZADD', worker_key .. ':entries', now, entry)
if (tonumber(w[2]) or 0) < now + run.lease_ms / 2 then -- a lease is prolonged when half of it is over
  redis.call('ZADD', WORKERS, now + run.lease_ms, worker)
  redis.call('HSET', worker_key, 'lease', now + run.lease_ms)
end
count_due(deadline, 1)
show_window('reservations', run.reservations + 1, 'clock', tonumber(drawn[2]) > run.clock and drawn[2] or found[7])
record('reserved', 'entry', entry, 'prompt', prompt, 'worker', worker, 'engine', engine, 'version', version,
  'deadline', deadline, 'value', p[1])
return reply('OK', prompt, p[4], version, deadline, event, p[1], attempt)
