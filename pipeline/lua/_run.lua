-- What every transition starts from: the run's keys and numbers, the time, and the caller's memory.
--
-- KEYS[1..6]  the run's fixed keys, in the order of the locals below (pipeline/keys.py: fixed)
-- ARGV[1]     the time in ms (tests), or '' for the server's
-- ARGV[2..4]  the newest (joined, version, head) this caller ever saw
-- Every reply is {code, joined, version, head, ...}. Any transition may answer UNKNOWN_RUN, or ROLLED_BACK: this
-- ledger is behind what the caller saw (_check.lua).
--
-- A call into Redis costs microseconds, a field and a number half of one: so the settings that most transitions need
-- stand together in one line, `rules` (ledger_types.RULES), and what few need is read there (field).
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
local max_staleness, publish_every, batch_size, buffer_capacity, group_size, group_launch, rho, byte_budget,
  max_trajectory_bytes, lease_ms, sampler, filter_metric = string.match(found[1] or '', '^' .. ('(%S+) '):rep(12))
local run = {
  max_staleness = tonumber(max_staleness), publish_every = tonumber(publish_every), batch_size = tonumber(batch_size),
  buffer_capacity = tonumber(buffer_capacity), group_size = tonumber(group_size), group_launch = tonumber(group_launch),
  rho = tonumber(rho), byte_budget = tonumber(byte_budget), max_trajectory_bytes = tonumber(max_trajectory_bytes),
  lease_ms = tonumber(lease_ms), sampler = sampler, filter_metric = filter_metric,
  joined = tonumber(found[2]), version = tonumber(found[3]), head = tonumber(found[4]), event = tonumber(found[5]),
  window = found[6], clock = tonumber(found[7]), stored = tonumber(found[8]), reservations = tonumber(found[9]),
  finished = tonumber(found[10]), paused = found[11], stopped = found[12],
}

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
