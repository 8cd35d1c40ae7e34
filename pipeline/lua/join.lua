#!lua flags=allow-oom
-- include: _run _prompts _buffers _entries _forget
-- The caller becomes the only trainer, at its checkpoint. If the ledger is behind it (fresh, or it lost its last
-- second), the ledger moves there and everything in flight is released. Entries the caller trained on already are dropped.
-- KEYS  the run's fixed keys; builds buffer:<kept>, entry:<recent, in flight>, prompt:<their>, worker:<their>
-- ARGV  [5] trainer, checkpoint, [7...] the entries of its last max_staleness + 2 batches
-- returns OK, event, dropped, released | MISSING, oldest | FENCED, trainer
local trainer, checkpoint = ARGV[5], tonumber(ARGV[6])
if trouble() == 'UNKNOWN_RUN' then return reply('UNKNOWN_RUN') end
local current = run.trainer
if current ~= trainer and redis.call('HEXISTS', TRAINERS, trainer) == 1 then return reply('FENCED', current) end
if checkpoint < run.oldest then return reply('MISSING', run.oldest) end

local behind = checkpoint > run.head
local in_flight = {}
if behind then
  in_flight = redis.call('ZRANGE', RESERVED, 0, -1)
  read_window()
  for _, entry in ipairs(in_flight) do release(entry, 'cancelled') end
  show_window()
  run.event = run.event + math.ceil((checkpoint - run.version) / run.publish_every)
end
forget_buffers(run.oldest, checkpoint - 1)
if behind then run.head, run.version = checkpoint, checkpoint end
run.joined = math.max(now, run.joined + 1, tonumber(ARGV[2]) + 1) -- newer than what the caller saw, at any clock
redis.call('HSET', TRAINERS, trainer, now)
redis.call('HSET', RUN, 'trainer', trainer, 'joined', run.joined, 'head', run.head, 'version', run.version,
  'event', run.event, 'oldest', checkpoint, 'checkpoint', checkpoint)

local dropped = 0
read_window()
for i = 7, #ARGV do
  local f = redis.call('HMGET', entry_key(ARGV[i]), 'state', 'buffer', 'worker', 'ids')
  if f[1] == 'RESERVED' then
    release(ARGV[i], 'cancelled')
    dropped = dropped + 1
  elseif f[1] == 'OCCUPIED' then
    take(ARGV[i], tonumber(f[2]))
    bury(ARGV[i], 'RELEASED', 'trained')
    delete_payloads(f[3], f[4])
    dropped = dropped + 1
  end
end
settle()
record('joined', 'trainer', trainer, 'checkpoint', checkpoint, 'head', run.head, 'version', run.version,
  'dropped', dropped, 'released', #in_flight)
return reply('OK', run.event, dropped, #in_flight)
