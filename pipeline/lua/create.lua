#!lua
-- A run begins: version, head and event are 0. The same settings again change nothing.
-- KEYS  the run's fixed keys; builds buffer:<0..max_staleness>
-- ARGV  time; joined, version, head (unused); [5] schema, digest, rules, [8...] settings as field, value, ...
-- returns CREATED | EXISTS | OTHER_SCHEMA | OTHER_SETTINGS
local RUN, EVENTS = KEYS[1], KEYS[4]
-- include: _by_coordinator
local made = redis.call('HMGET', RUN, 'schema', 'digest')
if made[2] then
  local other = made[1] ~= ARGV[5] and 'OTHER_SCHEMA' or made[2] ~= ARGV[6] and 'OTHER_SETTINGS'
  return { other or 'EXISTS', 0, 0, 0 }
end

local time = redis.call('TIME')
local now = tonumber(ARGV[1]) or time[1] * 1000 + math.floor(time[2] / 1000)
-- what is read most often stands first: a small hash is searched from its beginning
redis.call('HSET', RUN, 'rules', ARGV[7], 'joined', 0, 'version', 0, 'head', 0, 'window', '', 'clock', 0, 'stored', 0,
  'reservations', 0, 'finished', 0, 'paused', '', 'stopped', '', 'consecutive_failures', 0, 'consecutive_filtered', 0,
  'event', 0, 'oldest', 0, 'checkpoint', 0, 'credited', 0, 'trainer', '', 'awaited', -1, 'reap_after', 0, 'schema', ARGV[5],
  'digest', ARGV[6], 'created_ms', now)
redis.call('HSET', RUN, unpack(ARGV, 8))
local rules = redis.call('HMGET', RUN, 'max_staleness', 'batch_size', 'buffer_capacity', 'group_size', 'publish_every')
redis.call('HSET', RUN, 'window', string.rep('0/0/ ', rules[1] + 1))
for b = 0, rules[1] do
  redis.call('HSET', RUN .. ':buffer:' .. b, 'state', 'PENDING', 'occupied', 0, 'reserved', 0, 'due', 0, 'over', 0,
    'capacity', rules[3], 'target', rules[2], 'min_version', '')
end
redis.call('XADD', EVENTS, '*', 'kind', 'created', 'ms', now, 'digest', ARGV[6], 'max_staleness', rules[1],
  'batch_size', rules[2], 'buffer_capacity', rules[3], 'group_size', rules[4], 'publish_every', rules[5])
return { 'CREATED', 0, 0, 0 }
