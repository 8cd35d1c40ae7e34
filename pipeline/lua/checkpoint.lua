#!lua flags=allow-oom
-- include: _run _check _trainer _prompts _buffers _entries _forget
-- Updates < version are durable. Batches stay until the second-newest checkpoint covers them.
-- KEYS  the run's fixed keys; builds buffer:<covered>, entry:<its>, worker:<its>, trajectories:<its>
-- ARGV  [5] trainer, version
-- returns OK, oldest kept batch | AHEAD | FENCED, trainer
local version = tonumber(ARGV[6])
if version > run.head then return reply('AHEAD') end
if version > run.checkpoint then
  forget_buffers(run.oldest, run.checkpoint - 1)
  run.oldest = math.max(run.oldest, run.checkpoint)
  redis.call('HSET', RUN, 'checkpoint', version, 'oldest', run.oldest)
  record('checkpoint', 'version', version, 'oldest', run.oldest)
end
return reply('OK', run.oldest)
