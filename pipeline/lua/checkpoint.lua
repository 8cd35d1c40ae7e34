#!lua flags=allow-oom
-- include: _call _by_trainer _found _run _check _trainer _race _prompts _buffers _workers _entries _forget
-- Updates < version are durable. Batches stay until the second-newest checkpoint covers them; only where head could
-- otherwise never be filled within byte_budget, or where Redis is full, until the newest one does.
-- KEYS  the run's fixed keys; builds buffer:<covered>, entry:<its>, worker:<its>, trajectories:<its>
-- ARGV  [5] trainer, version, 1 if Redis is at maxmemory
-- returns OK, oldest kept batch | AHEAD | FENCED, trainer
local version = tonumber(ARGV[6])
if version > run.head then return reply('AHEAD') end
if version > run.checkpoint then
  forget_buffers(run.oldest, run.checkpoint - 1)
  run.oldest, run.checkpoint = math.max(run.oldest, run.checkpoint), version
  redis.call('HSET', RUN, 'checkpoint', version, 'oldest', run.oldest)
  record('checkpoint', 'version', version, 'oldest', run.oldest)
end

open_window()
local head = window[run.head] or { occupied = 0 } -- with max_staleness 0 the window is empty until the next Publish
local missing, stored = run.batch_size - head.occupied, tonumber(field('stored'))
local need = (stored + missing * run.group_launch) * run.max_trajectory_bytes
local starved = missing > redis.call('ZCARD', RESERVED) and run.byte_budget > 0 and need > run.byte_budget
if (starved or ARGV[7] == '1') and run.oldest < run.checkpoint then
  forget_buffers(run.oldest, run.checkpoint - 1)
  run.oldest = run.checkpoint
  redis.call('HSET', RUN, 'oldest', run.oldest)
  record('memory', 'oldest', run.oldest)
end
return reply('OK', run.oldest)
