-- The run's numbers, from what was found; the answer; and the caller's memory.
--
-- What costs, in instructions (a Reserve is 330,000): a call into Redis 5,000, each of its arguments and answers 2,000;
-- a number in `..` 2,400, a closure 700, tonumber 1,400 but `+ 0` 400. So the settings that most transitions need stand
-- together in one line, `rules` (ledger_settings.RULES), and what few need is read there (field).
local run = {}
if found[1] then
  local max_staleness, publish_every, batch_size, buffer_capacity, group_size, group_launch, rho, byte_budget,
    max_trajectory_bytes, lease_ms, sampler, filter_metric, evidence = string.match(found[1],
    '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
  run = {
    max_staleness = max_staleness + 0, publish_every = publish_every + 0, batch_size = batch_size + 0,
    buffer_capacity = buffer_capacity + 0, group_size = group_size + 0, group_launch = group_launch + 0, rho = rho,
    byte_budget = byte_budget + 0, max_trajectory_bytes = max_trajectory_bytes, lease_ms = lease_ms + 0,
    sampler = sampler, filter_metric = filter_metric, evidence = evidence,
    joined = found[2] + 0, version = found[3] + 0, head = found[4] + 0, window = found[5], clock = found[6] + 0,
  }
end

local function field(name) return redis.call('HGET', RUN, name) end

local function reply(code, ...)
  return { code, run.joined or 0, run.version or 0, run.head or 0, ... }
end

local function record(kind, ...)
  redis.call('XADD', EVENTS, '*', 'kind', kind, 'ms', now, ...)
end

local GO_ON = '; mend the cause, then `headrace up` goes on'

local function stop(reason)
  if field('stopped') ~= '' then return end
  redis.call('HSET', RUN, 'stopped', reason)
  record('stopped', 'reason', reason)
end

-- A Join newer than the caller's memory makes that memory void: the trainer has answered for the loss.
local function trouble()
  if not run.version then return 'UNKNOWN_RUN' end
  if found[2] == ARGV[2] and found[3] == ARGV[3] and found[4] == ARGV[4] then return end
  local joined = tonumber(ARGV[2])
  if run.joined < joined then return 'ROLLED_BACK' end
  if run.joined == joined and (run.version < tonumber(ARGV[3]) or run.head < tonumber(ARGV[4])) then
    return 'ROLLED_BACK'
  end
end
