#!lua flags=allow-oom
-- include: _call _found _run _check
-- What is known of an engine: its name, url, version and state. ready means verified; any other is not routed to. Its url
-- has a key of its own: a worker marks an engine, and may not say where the requests of all others go.
-- `event` is the one that published its version; what was published unseen is counted back from the newest.
-- KEYS  the run's fixed keys; builds engines, engine:<name>, engine_urls, versions
-- ARGV  [5] engine, state (ready | another word | removed), version or '', url or '', reason
-- returns OK
local engine, state, version, url, reason = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local key, ENGINES, URLS = RUN .. ':engine:' .. engine, RUN .. ':engines', RUN .. ':engine_urls'
if state == 'removed' then
  redis.call('ZREM', ENGINES, engine)
  redis.call('DEL', key)
  redis.call('HDEL', URLS, engine)
else
  if url ~= '' then redis.call('HSET', URLS, engine, url) end
  redis.call('HSET', key, 'state', state, 'reason', reason, 'since_ms', now)
  if version ~= '' then
    local lag = math.ceil((run.version - version) / run.publish_every)
    local published = redis.call('HGET', RUN .. ':versions', version)
    redis.call('HSET', key, 'version', version, 'event', published and cjson.decode(published).event or field('event') - lag)
  end
  redis.call('HSETNX', key, 'version', -1)
  redis.call('ZADD', ENGINES, redis.call('HGET', key, 'version'), engine)
end
record('engine', 'engine', engine, 'state', state, 'version', version, 'reason', reason)
return reply('OK')
