-- What every transition starts from: the run's keys, and the time.
--
-- KEYS[1..6]  the run's fixed keys, in the order of the locals below (pipeline/keys.py: fixed)
-- ARGV[1]     the time in ms (tests), or '' for the server's
-- ARGV[2..4]  the newest (joined, version, head) this caller ever saw
-- Every reply is {code, joined, version, head, ...}. Any transition may answer UNKNOWN_RUN, or ROLLED_BACK: this
-- ledger is behind what the caller saw (_check.lua).
local RUN, PROMPTS, RESERVED, EVENTS, COUNTERS, WORKERS = unpack(KEYS)
local FIXED = 6
local SHIFT = 4294967296 -- scores are number * 2^32 + sequence number

local now = ARGV[1]
if now == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
now = now + 0
