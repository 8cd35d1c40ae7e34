#!lua flags=allow-oom
-- include: _run _check _trainer _prompts _buffers _entries _refs
-- READY -> CONSUMED: hands out exactly B entries and freezes their order; head + 1. A stored batch again, for replay.
-- KEYS  the run's fixed keys; builds buffer:<version>, entry:<its>, buffer:<window>
-- ARGV  [5] trainer, version
-- returns OK, refs | NOT_READY, finished | PUBLISH_FIRST | MISSING, oldest | NOT_HEAD | FENCED, trainer
local version = tonumber(ARGV[6])
if version < run.oldest then return reply('MISSING', run.oldest) end
if version < run.head then return reply('OK', refs(version)) end
if version > run.head then return reply('NOT_HEAD') end
if run.head >= run.version + run.publish_every then return reply('PUBLISH_FIRST') end
read_window()
if window[version].occupied < run.batch_size then return reply('NOT_READY', window[version].occupied) end

local batch = refs(version)
for i = 1, #batch, 3 do
  local key = entry_key(batch[i])
  redis.call('HSET', key, 'state', 'CONSUMED', 'consumed_ms', now)
  redis.call('HINCRBY', COUNTERS, 'staleness:' .. version - tonumber(redis.call('HGET', key, 'version')), 1)
end
redis.call('HINCRBY', COUNTERS, 'consumed', run.batch_size)
redis.call('HSET', buffer_key(version), 'state', 'CONSUMED', 'reserved', 0, 'over', 0, 'consumed_ms', now)
run.head = version + 1
redis.call('HSET', RUN, 'head', run.head)
record('consumed', 'buffer', version)
read_window()
settle()
return reply('OK', batch)
