#!lua flags=allow-oom
-- include: _call _by_worker _found _run _check _race _prompts _buffers _workers _entries
-- A worker incarnation lives, and says which entries it is running. Both sides then agree: entries that it does not
-- know, older than one lease (a reply may be on its way), are released; entries that the ledger lacks are cancelled.
-- KEYS  the run's fixed keys; builds worker:<incarnation>, entry:<its>, prompt:<its>, buffer:<window>
-- ARGV  [5] worker, [6...] entries
-- returns OK, drain (0 or 1), {cancelled entries}, {entries to finish with what they have}
local worker, known, cancelled, truncate = ARGV[5], {}, {}, {}
redis.call('ZADD', WORKERS, now + run.lease_ms, worker)
redis.call('HSET', worker_key(worker), 'lease', now + run.lease_ms)
for i = 6, #ARGV do
  known[ARGV[i]] = true
  local e = redis.call('HMGET', entry_key(ARGV[i]), 'state', 'worker', 'truncate_ms')
  if e[2] ~= worker or (e[1] ~= 'RESERVED' and e[1] ~= 'OCCUPIED' and e[1] ~= 'CONSUMED') then
    cancelled[#cancelled + 1] = ARGV[i]
  elseif e[1] == 'RESERVED' and e[3] then
    truncate[#truncate + 1] = ARGV[i]
  end
end

local released = false
open_window()
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', worker_key(worker) .. ':entries', '-inf', now - run.lease_ms)) do
  if not known[entry] then
    release(entry, 'lost')
    released = true
  end
end
if released then settle() end
return reply('OK', redis.call('HGET', worker_key(worker), 'drain') == '1' and 1 or 0, cancelled, truncate)
