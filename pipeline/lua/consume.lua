#!lua flags=allow-oom
-- include: _call _by_trainer _found _run _check _trainer _race _prompts _buffers _workers _entries _refs
-- READY -> CONSUMED: hands out exactly B entries and freezes their order; head + 1. A stored batch again, for replay.
-- NOT_READY is an answer, not a refusal: it leaves the mark that the trainer waits for head (_proactive.lua).
-- KEYS  the run's fixed keys; builds buffer:<version>, entry:<its>, buffer:<window>
-- ARGV  [5] trainer, version
-- returns OK, refs | NOT_READY, finished | PUBLISH_FIRST | MISSING, oldest | NOT_HEAD | FENCED, trainer
local version = tonumber(ARGV[6])
if version < run.oldest then return reply('MISSING', run.oldest) end
if version < run.head then return reply('OK', refs(version)) end
if version > run.head then return reply('NOT_HEAD') end
if run.head >= run.version + run.publish_every then return reply('PUBLISH_FIRST') end
open_window()
if window[version].occupied < run.batch_size then
  redis.call('HSET', RUN, 'awaited', version)
  return reply('NOT_READY', window[version].occupied)
end

local batch, entries = refs(version), {}
for i = 1, #batch, 3 do
  entries[#entries + 1] = batch[i]
  redis.call('HSET', entry_key(batch[i]), 'state', 'CONSUMED', 'consumed_ms', now)
end
local scores = redis.call('ZRANGE', members_key(version), 0, -1, 'WITHSCORES')
local staleness = {}
for i = 2, #scores, 2 do
  local k = version - math.floor(tonumber(scores[i]) / SHIFT)
  staleness[k] = (staleness[k] or 0) + 1
end
for k, count in pairs(staleness) do redis.call('HINCRBY', COUNTERS, 'staleness:' .. k, count) end
redis.call('HINCRBY', COUNTERS, 'consumed', run.batch_size)
redis.call('HSET', buffer_key(version), 'state', 'CONSUMED', 'reserved', 0, 'over', 0, 'consumed_ms', now)
record('consumed', 'buffer', version, 'entries', table.concat(entries, ' '))
run.head = version + 1
move_window()
settle('head', run.head)
return reply('OK', batch)
