#!lua flags=allow-oom
-- include: _call _by_trainer _found _run _check _trainer _race _prompts _buffers _workers _entries
-- The policy advances: version = head, event + 1. A version that is out already (a resumed trainer replays its
-- updates) is answered REPLAYED; the very first weights of the present version only get their record. With evidence
-- 'receipt' (credit.lua) no policy is out before its updates are credited.
-- KEYS  the run's fixed keys; builds versions, buffer:<window>
-- ARGV  [5] trainer, version, path, digest, 1 if this is the run's last update
-- returns PUBLISHED, event | REPLAYED | EARLY | UNCREDITED, first version not credited | FENCED, trainer
local version, VERSIONS = tonumber(ARGV[6]), RUN .. ':versions'
local advances = version > run.version
if advances then
  local whole = version == run.version + run.publish_every or ARGV[9] == '1'
  if version ~= run.head or not whole then return reply('EARLY') end
  local credited = run.evidence == 'receipt' and tonumber(field('credited')) or version
  if credited < version then return reply('UNCREDITED', credited) end
elseif version < run.version or redis.call('HEXISTS', VERSIONS, version) == 1 then
  return reply('REPLAYED')
end

open_window()
local event = tonumber(field('event'))
if advances then
  run.version, event = version, event + 1
  move_window()
end
redis.call('HSET', VERSIONS, version,
  cjson.encode({ path = ARGV[7], digest = ARGV[8], event = event, time = now }))
record('published', 'version', version, 'event', event, 'path', ARGV[7], 'digest', ARGV[8])
settle('version', run.version, 'event', event)
return reply('PUBLISHED', event)
