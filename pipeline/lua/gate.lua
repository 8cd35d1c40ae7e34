#!lua flags=allow-oom
-- include: _call _by_coordinator _found _run _check _race _prompts
-- Opens or closes the gate of Reserve: for all (pause, stop, resume), or for one worker (drain).
-- Resume forgets what went wrong: prompts leave the quarantine, first in line, and failures are counted anew.
-- KEYS  the run's fixed keys; builds worker:<incarnation>, quarantined, prompt:<its>
-- ARGV  [5] pause | resume | stop | drain, the reason or the worker
-- returns OK
local what, detail, QUARANTINED = ARGV[5], ARGV[6], RUN .. ':quarantined'
if what == 'pause' then
  redis.call('HSET', RUN, 'paused', detail)
  record('paused', 'reason', detail)
elseif what == 'resume' then
  redis.call('HSET', RUN, 'paused', '', 'stopped', '', 'consecutive_failures', 0, 'consecutive_filtered', 0)
  local prompts = redis.call('ZRANGE', QUARANTINED, 0, -1)
  for _, prompt in ipairs(prompts) do
    redis.call('HSET', prompt_key(prompt), 'attempts', 0, 'lost', 0)
    retry(prompt)
  end
  redis.call('DEL', QUARANTINED)
  record('resumed', 'prompts', #prompts)
elseif what == 'stop' then
  stop(detail)
else
  redis.call('ZADD', WORKERS, 'NX', now + run.lease_ms, detail) -- so that one that never comes is forgotten
  redis.call('HSET', RUN .. ':worker:' .. detail, 'drain', 1)
  record('drain', 'worker', detail)
end
return reply('OK')
