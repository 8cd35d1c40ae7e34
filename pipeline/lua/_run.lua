-- What every transition starts from: the run's keys and numbers, the time, and the caller's memory.
--
-- KEYS[1..6]  the run's fixed keys, in the order of the locals below (pipeline/keys.py: fixed)
-- ARGV[1]     the time in ms (tests), or '' for the server's
-- ARGV[2..4]  the newest (joined, version, head) this caller ever saw
-- Every reply is {code, joined, version, head, ...}. Any transition may answer UNKNOWN_RUN, or ROLLED_BACK: this
-- ledger is behind what the caller saw (_check.lua).
--
-- A call into Redis costs about a microsecond, a field a quarter of one: so the settings that most transitions need
-- stand together in `rules`, and what few need is read there (field).
local RUN, PROMPTS, RESERVED, EVENTS, COUNTERS, WORKERS = unpack(KEYS)
local FIXED = 6
local SHIFT = 4294967296 -- scores are number * 2^32 + sequence number

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local found = redis.call('HMGET', RUN, 'rules', 'joined', 'version', 'head', 'event', 'window', 'clock', 'stored',
  'reservations', 'finished', 'paused', 'stopped')
local run = found[1] and cjson.decode(found[1]) or {}
run.joined, run.version, run.head, run.event = tonumber(found[2]), tonumber(found[3]), tonumber(found[4]), tonumber(found[5])
run.window, run.clock, run.stored = found[6], tonumber(found[7]), tonumber(found[8])
run.reservations, run.finished, run.paused, run.stopped = tonumber(found[9]), tonumber(found[10]), found[11], found[12]

local function field(name) return redis.call('HGET', RUN, name) end

local function reply(code, ...)
  return { code, run.joined or 0, run.version or 0, run.head or 0, ... }
end

local function record(kind, ...)
  redis.call('XADD', EVENTS, '*', 'kind', kind, 'ms', now, ...)
end

local GO_ON = '; mend the cause, then `headrace up` goes on'

local function stop(reason)
  if run.stopped ~= '' then return end
  run.stopped = reason
  redis.call('HSET', RUN, 'stopped', reason)
  record('stopped', 'reason', reason)
end

-- A Join newer than the caller's memory makes that memory void: the trainer has answered for the loss.
local function trouble()
  if not run.version then return 'UNKNOWN_RUN' end
  local joined = tonumber(ARGV[2])
  if run.joined < joined then return 'ROLLED_BACK' end
  if run.joined == joined and (run.version < tonumber(ARGV[3]) or run.head < tonumber(ARGV[4])) then
    return 'ROLLED_BACK'
  end
end
