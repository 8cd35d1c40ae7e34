#!lua
-- include: _call
-- EMPTY -> RESERVED: admits one entry, if it can be placed in time whatever the others do; draws its prompt and
-- freezes the prompt's value. The same entry id again gets the same answer, as long as the entry lives; another
-- worker's is GONE.
-- KEYS  [7] the entry; builds prompt:<drawn>, engine:<name>, worker:<incarnation>, buffer:<window>
-- ARGV  [5] entry, worker, engine, Exp(1) for the prompt's return
-- returns OK, prompt, payload, visit, version, deadline, event, value, attempt
--         | ENGINE STALE PAUSED MEMORY FULL NO_PROMPT | GONE
local found = redis.call('HMGET', RUN, 'rules', 'joined', 'version', 'head', 'window', 'clock', 'reservations',
  'paused', 'stopped')
-- include: _run _check
local reservations, paused, stopped = found[7] + 1, found[8], found[9]
local entry, worker, engine, exponential = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local key, worker_key, prompt_key = KEYS[FIXED + 1], RUN .. ':worker:' .. worker, RUN .. ':prompt:'

local state = redis.call('HGET', key, 'state')
if state then
  local e = redis.call('HMGET', key, 'prompt', 'visit', 'version', 'deadline', 'event', 'value', 'attempt', 'worker')
  local lives = state == 'RESERVED' or state == 'OCCUPIED' or state == 'CONSUMED'
  if not lives or e[8] ~= worker then return reply('GONE') end
  return reply('OK', e[1], redis.call('HGET', prompt_key .. e[1], 'payload'), unpack(e, 2, 7))
end

local e = redis.call('HMGET', RUN .. ':engine:' .. engine, 'state', 'version', 'event')
local version, event = e[2], e[3]
if e[1] ~= 'ready' or version + 0 > run.version then return reply('ENGINE') end
local deadline, last = version + run.max_staleness, run.version + run.max_staleness
if deadline < run.head then return reply('STALE') end
local w = redis.call('HMGET', worker_key, 'drain', 'lease')
if paused ~= '' or stopped ~= '' or w[1] == '1' then return reply('PAUSED') end
if run.byte_budget > 0 then
  local trajectories = field('stored') + (redis.call('ZCARD', RESERVED) + 1) * run.group_launch
  if trajectories * run.max_trajectory_bytes > run.byte_budget then return reply('MEMORY') end
end

-- FULL unless slack(k) >= 1 for every k in deadline..last (_buffers.lua): the same as an open slot, in the slot view, up
-- to deadline. The latest of them is where a reader will see this reservation; that and `due` is all that changes. So
-- the window's text is walked once, and neither read into tables nor written whole: Reserve's share of both was 10 %.
local b, undrawn, window, due, place, open = last, 0, nil, nil, nil, nil
for occupied, at, counted, after in string.gmatch(run.window, '(%d+)/()(%d+)()%S*') do
  if b == deadline then
    due = counted + 1
    window = string.sub(run.window, 1, at - 1) .. due .. string.sub(run.window, after)
  end
  open = occupied + 0 < run.batch_size and run.buffer_capacity - occupied or 0
  undrawn = undrawn + counted
  if b <= deadline and undrawn < open then place = b break end
  b, undrawn = b - 1, math.max(undrawn - open, 0)
end
if not place then return reply('FULL') end
local drawn = redis.call('ZPOPMIN', PROMPTS)
if not drawn[1] then return reply('NO_PROMPT') end

local prompt = drawn[1]
local p = redis.call('HMGET', prompt_key .. prompt, 'value', 'attempts', 'lost', 'payload', 'visits')
local attempt = p[2] + p[3] + 1
redis.call('HSET', key, 'state', 'RESERVED', 'prompt', prompt, 'visit', p[5], 'version', version, 'deadline', deadline,
  'event', event, 'value', p[1], 'worker', worker, 'engine', engine, 'attempt', attempt, 'reserved_ms', now,
  'exponential', exponential)
redis.call('ZADD', RESERVED, deadline * SHIFT + reservations, entry)
redis.call('ZADD', worker_key .. ':entries', now, entry)
if (w[2] or 0) + 0 < now + run.lease_ms / 2 then -- a lease is prolonged when half of it is over
  redis.call('ZADD', WORKERS, now + run.lease_ms, worker)
  redis.call('HSET', worker_key, 'lease', now + run.lease_ms)
end
local buffer_key = RUN .. ':buffer:'
if place == deadline then
  redis.call('HSET', buffer_key .. place, 'due', due, 'reserved', undrawn + 1)
else
  redis.call('HSET', buffer_key .. deadline, 'due', due)
  redis.call('HSET', buffer_key .. place, 'reserved', undrawn + 1)
end
if undrawn + 1 == open then redis.call('HSET', buffer_key .. place, 'state', 'STUCK') end
redis.call('HSET', RUN, 'window', window, 'reservations', reservations,
  'clock', drawn[2] + 0 > run.clock and drawn[2] or found[6])
record('reserved', 'entry', entry, 'prompt', prompt, 'worker', worker, 'engine', engine, 'version', version,
  'deadline', deadline, 'value', p[1])
return reply('OK', prompt, p[4], p[5], version, deadline, event, p[1], attempt)
