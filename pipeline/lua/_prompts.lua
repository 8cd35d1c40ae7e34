-- A prompt: its evidence, and its place in the race.
--
-- hr:{run}:prompt:<id>  alpha beta (rebased at `event`), visits (finished ones), epoch, attempts, lost, value, payload
-- Exponential race: idle prompts wait at clock + Exp(1) / weight. Reserve takes the smallest and moves the clock there;
-- by memorylessness each draw is proportional to the weights of the idle prompts.
-- shuffle: the same set, at epoch + U(0, 1), a fresh permutation each epoch.
local function prompt_key(prompt) return RUN .. ':prompt:' .. prompt end

local function prompt_score(alpha, beta, epoch, exponential)
  if run.sampler == 'shuffle' then return epoch + 1 - math.exp(-exponential) end
  local value = alpha / (alpha + beta)
  return run.clock + exponential / (math.sqrt(value * (1 - value)) + 0.05)
end

-- back into the race, at the weight of its present evidence
local function idle(prompt, exponential)
  local p = redis.call('HMGET', prompt_key(prompt), 'alpha', 'beta', 'epoch')
  redis.call('ZADD', PROMPTS, prompt_score(tonumber(p[1]), tonumber(p[2]), tonumber(p[3]), exponential), prompt)
end

-- first in line; one below the clock, which therefore does not run backwards
local function retry(prompt)
  redis.call('ZADD', PROMPTS, run.clock - 1, prompt)
end

local function quarantine(prompt, reason)
  redis.call('ZADD', RUN .. ':quarantined', now, prompt)
  record('quarantined', 'prompt', prompt, 'reason', reason)
  if redis.call('ZCARD', PROMPTS) == 0 and redis.call('ZCARD', RESERVED) == 0 then
    stop('no prompt is idle or in flight: all of them are in quarantine' .. GO_ON)
  end
end

-- a visit ends: its outcomes, generated under policy event `event`, become evidence, and the prompt is idle again.
-- Evidence is kept rebased at the newest event, so that the order of receipt does not matter.
local function finish_prompt(prompt, event, outcomes, exponential)
  local p = redis.call('HMGET', prompt_key(prompt), 'alpha', 'beta', 'event', 'epoch', 'visits')
  local alpha, beta, newest = tonumber(p[1]), tonumber(p[2]), tonumber(p[3])
  if event > newest then
    local decay = run.rho ^ (event - newest)
    alpha, beta, newest = alpha * decay, beta * decay, event
  end
  local weight = run.rho ^ (newest - event)
  for _, outcome in ipairs(outcomes) do
    alpha, beta = alpha + weight * outcome, beta + weight * (1 - outcome)
  end
  local epoch = tonumber(p[4]) + 1
  redis.call('HSET', prompt_key(prompt), 'alpha', alpha, 'beta', beta, 'event', newest, 'value', alpha / (alpha + beta),
    'epoch', epoch, 'visits', tonumber(p[5]) + 1, 'attempts', 0, 'lost', 0)
  redis.call('ZADD', PROMPTS, prompt_score(alpha, beta, epoch, exponential), prompt)
end
