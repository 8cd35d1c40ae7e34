#!lua flags=allow-oom
-- include: _call _by_trainer _found _run _race _prompts _buffers _workers _entries _forget
-- The caller becomes the only trainer, at its checkpoint. If the ledger is behind it (fresh, or it lost its last
-- second), the ledger moves there and everything in flight is released; else the batches since the checkpoint before the
-- caller's stay, as after any checkpoint: the caller's may turn out to be damaged. Entries the caller trained on already
-- are dropped. Credits (credit.lua) go on where the ledger stands, since the caller remembers those of its last
-- max_staleness + 2 updates; what it lost of older ones is lost, and so is all that a Redis knew which was replaced.
-- KEYS  the run's fixed keys; builds buffer:<kept>, entry:<recent, in flight>, trainers, prompt:<their>, worker:<their>
-- ARGV  [5] trainer, checkpoint, [7...] the entries of its last max_staleness + 2 batches
-- returns OK, event, dropped, released, first version not credited | MISSING, oldest | FENCED, trainer
local trainer, checkpoint, TRAINERS = ARGV[5], tonumber(ARGV[6]), RUN .. ':trainers'
if trouble() == 'UNKNOWN_RUN' then return reply('UNKNOWN_RUN') end
local t = redis.call('HMGET', RUN, 'trainer', 'oldest', 'checkpoint', 'event', 'credited')
local current, oldest, newest, event, credited = t[1], tonumber(t[2]), tonumber(t[3]), tonumber(t[4]), tonumber(t[5])
if current ~= trainer and redis.call('HEXISTS', TRAINERS, trainer) == 1 then return reply('FENCED', current) end
if checkpoint < oldest then return reply('MISSING', oldest) end

local behind = checkpoint > run.head
local in_flight = behind and redis.call('ZRANGE', RESERVED, 0, -1) or {}
open_window()
if behind then
  for _, entry in ipairs(in_flight) do release(entry, 'cancelled') end
  event = event + math.ceil((checkpoint - run.version) / run.publish_every)
end
local kept = behind and checkpoint or checkpoint > newest and newest or oldest
forget_buffers(oldest, kept - 1)
if behind then
  run.head, run.version = checkpoint, checkpoint
  move_window()
end
run.joined = math.max(now, run.joined + 1, tonumber(ARGV[2]) + 1) -- newer than what the caller saw, at any clock
if run.evidence == 'receipt' then
  credited = math.max(credited, current == '' and checkpoint or checkpoint - run.max_staleness - 2)
end
redis.call('HSET', TRAINERS, trainer, now)
redis.call('HSET', RUN, 'trainer', trainer, 'joined', run.joined, 'head', run.head, 'version', run.version,
  'event', event, 'oldest', kept, 'checkpoint', checkpoint, 'credited', credited)

local dropped = 0
for i = 7, #ARGV do
  local e = redis.call('HMGET', entry_key(ARGV[i]), 'state', 'buffer', 'worker', 'ids', 'prompt')
  if e[1] == 'RESERVED' then
    release(ARGV[i], 'cancelled')
    dropped = dropped + 1
  elseif e[1] == 'OCCUPIED' then
    take(ARGV[i], tonumber(e[2]))
    bury(ARGV[i], 'RELEASED', 'trained')
    delete_payloads(e[3], e[4])
    record('dropped', 'entry', ARGV[i], 'prompt', e[5])
    dropped = dropped + 1
  end
end
settle()
record('joined', 'trainer', trainer, 'checkpoint', checkpoint, 'head', run.head, 'version', run.version,
  'dropped', dropped, 'released', #in_flight, 'credited', credited, 'oldest', kept)
return reply('OK', event, dropped, #in_flight, credited)
