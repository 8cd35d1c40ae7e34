#!lua
-- A run begins: version, head and event are 0. The same settings again change nothing.
-- KEYS  the run's fixed keys
-- ARGV  time; joined, version, head (unused); [5] digest; [6...] settings as field, value, ...
-- returns CREATED | EXISTS | OTHER_SETTINGS
local RUN = KEYS[1]
local digest = redis.call('HGET', RUN, 'digest')
if digest then return { digest == ARGV[5] and 'EXISTS' or 'OTHER_SETTINGS', 0, 0, 0 } end

local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', RUN, 'schema', 1, 'digest', ARGV[5], 'created_ms', now, 'version', 0, 'head', 0, 'event', 0,
  'oldest', 0, 'checkpoint', 0, 'clock', 0, 'joined', 0, 'stored', 0, 'trainer', '',
  'paused', '', 'stopped', '', 'reservations', 0, 'finished', 0, 'consecutive_failures', 0, 'reap_after', 0)
redis.call('HSET', RUN, unpack(ARGV, 6))
redis.call('XADD', KEYS[5], '*', 'kind', 'created', 'ms', now, 'digest', ARGV[5])
return { 'CREATED', 0, 0, 0 }
