-- A prompt: its evidence, and its place in the race.
--
-- hr:{run}:prompt:<id>  alpha beta (rebased at `event`), visits (finished ones), epoch (the one it came in), attempts,
--                       lost, value, payload
-- Exponential race: idle prompts wait at clock + Exp(1) / weight. Reserve takes the smallest and moves the clock there;
-- by memorylessness each draw is proportional to the weights of the idle prompts.
-- shuffle: the same set, at epoch + visits + U(0, 1), a fresh permutation each epoch.
local function prompt_key(prompt) return RUN .. ':prompt:' .. prompt end

local function prompt_weight(alpha, beta)
  local value = alpha / (alpha + beta)
  return math.sqrt(value * (1 - value)) + 0.05
end

local function prompt_score(alpha, beta, epoch, exponential)
  if run.sampler == 'shuffle' then return epoch + 1 - math.exp(-exponential) end
  return run.clock + exponential / prompt_weight(alpha, beta)
end
