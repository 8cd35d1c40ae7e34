#!lua flags=allow-oom
-- include: _call _by_coordinator _found _run _check _race _prompts _buffers _workers _entries _proactive
-- Leases that ran out release everything of their incarnation; entries in flight for too long fail; the proactive filter.
-- After a restart of Redis nobody could renew for a while: then one full lease passes first.
-- KEYS  the run's fixed keys; builds worker:<expired>, entry:<its>, prompt:<its>, buffer:<window>
-- ARGV  [5] run_id of the Redis server, '' if unknown
-- returns OK, {released entries}
local server = field('redis_run_id')
if server ~= ARGV[5] then
  redis.call('HSET', RUN, 'redis_run_id', ARGV[5])
  if server then
    redis.call('HSET', RUN, 'reap_after', now + run.lease_ms)
    record('redis_restarted', 'reap_after', now + run.lease_ms)
  end
end
if now < tonumber(field('reap_after')) then return reply('OK', {}) end

local released = {}
open_window()
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '-inf', now - 1)) do
  for _, entry in ipairs(redis.call('ZRANGE', worker_key(worker) .. ':entries', 0, -1)) do
    release(entry, 'lost', 'its worker is gone')
    released[#released + 1] = entry
  end
  redis.call('ZREM', WORKERS, worker)
  redis.call('HDEL', worker_key(worker), 'lease')
  forget_worker(worker)
  record('lease_expired', 'worker', worker)
end
for _, worker in ipairs(redis.call('ZRANGE', WORKERS, 0, -1)) do
  local old = redis.call('ZRANGEBYSCORE', worker_key(worker) .. ':entries', '-inf', now - tonumber(field('max_age_ms')))
  for _, entry in ipairs(old) do
    release(entry, 'failed', 'not finished within buffers.max_age_s')
    released[#released + 1] = entry
  end
end
if #released > 0 then
  settle()
  open_window()
end
local before = #released
abort_slow(released)
if #released > before then settle() end
return reply('OK', released)
