#!lua flags=allow-oom
-- include: _run _check
-- Opens or closes the gate of Reserve: for all (pause, stop, resume), or for one worker (drain).
-- KEYS  the run's fixed keys; builds worker:<incarnation>
-- ARGV  [5] pause | resume | stop | drain, the reason or the worker
-- returns OK
local what, detail = ARGV[5], ARGV[6]
if what == 'pause' then
  redis.call('HSET', RUN, 'paused', detail)
  record('paused', 'reason', detail)
elseif what == 'resume' then
  redis.call('HSET', RUN, 'paused', '', 'stopped', '', 'consecutive_failures', 0)
  record('resumed')
elseif what == 'stop' then
  stop(detail)
else
  redis.call('HSET', RUN .. ':worker:' .. detail, 'drain', 1)
  record('drain', 'worker', detail)
end
return reply('OK')
