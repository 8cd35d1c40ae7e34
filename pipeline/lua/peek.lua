#!lua flags=allow-oom
-- include: _call _found _run _check _buffers _refs
-- The refs of a READY buffer, for prefetching. Changes nothing.
-- KEYS  the run's fixed keys; builds buffer:<version>, entry:<its>
-- ARGV  [5] version
-- returns OK, refs | NOT_READY
local occupied = redis.call('HGET', buffer_key(ARGV[5]), 'occupied')
if (tonumber(occupied) or 0) < run.batch_size then return reply('NOT_READY') end
return reply('OK', refs(ARGV[5]))
