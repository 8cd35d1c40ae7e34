-- What every transition starts from: the run's keys and numbers, the time, and the caller's memory.
--
-- KEYS[1..10]  the run's fixed keys, in the order of the locals below (pipeline/keys.py: fixed)
-- ARGV[1]      the time in ms (tests), or '' for the server's
-- ARGV[2..4]   the newest (joined, version, head) this caller ever saw
-- Every reply is {code, joined, version, head, ...}. Any transition may answer UNKNOWN_RUN, or ROLLED_BACK: this
-- ledger is behind what the caller saw (_check.lua).
local RUN, PROMPTS, QUARANTINED, RESERVED, EVENTS, COUNTERS, ENGINES, WORKERS, VERSIONS, TRAINERS = unpack(KEYS)
local FIXED = 10
local SHIFT = 4294967296 -- scores are number * 2^32 + sequence number

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local FIELDS = {
  'joined', 'version', 'head', 'event', 'oldest', 'checkpoint', 'clock', 'stored', 'max_staleness', 'publish_every',
  'batch_size', 'buffer_capacity', 'group_size', 'group_launch', 'rho', 'byte_budget', 'max_trajectory_bytes',
  'lease_ms', 'consecutive_failures', 'reservations', 'finished', 'trainer', 'paused', 'stopped', 'sampler',
}
local TEXTS = #FIELDS - 4 -- the last four are no numbers
local run = {}
for i, value in ipairs(redis.call('HMGET', RUN, unpack(FIELDS))) do
  run[FIELDS[i]] = i <= TEXTS and tonumber(value) or value
end

-- what few transitions need is read there: a field costs each of them half a microsecond
local function limit_of(name) return tonumber(redis.call('HGET', RUN, name)) end

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
  local joined, version, head = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
  if run.joined < joined or (run.joined == joined and (run.version < version or run.head < head)) then
    return 'ROLLED_BACK'
  end
end
