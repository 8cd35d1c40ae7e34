-- A prompt's way back to the others (_race.lua), or out.

-- back into the race, at the weight of its present evidence
local function idle(prompt, exponential)
  local p = redis.call('HMGET', prompt_key(prompt), 'alpha', 'beta', 'epoch', 'visits')
  redis.call('ZADD', PROMPTS, prompt_score(p[1], p[2], p[3] + p[4], exponential), prompt)
end

-- first in line, before whatever is idle now or returns later: of a shuffle that may be a prompt of an epoch long past,
-- else nothing is below the clock, which a retry therefore does not move
local function retry(prompt)
  redis.call('ZADD', PROMPTS, run.sampler == 'shuffle' and -1 or run.clock - 1, prompt)
end

local function quarantine(prompt, reason)
  redis.call('ZADD', RUN .. ':quarantined', now, prompt)
  record('quarantined', 'prompt', prompt, 'reason', reason)
  if redis.call('ZCARD', PROMPTS) == 0 and redis.call('ZCARD', RESERVED) == 0 then
    stop('no prompt is idle or in flight: all of them are in quarantine' .. GO_ON)
  end
end
