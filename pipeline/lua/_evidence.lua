-- A visit ends, and the prompt is idle again. With evidence 'event' its outcomes, generated under policy event `event`,
-- count now; they are kept rebased at the newest event, so that the order of receipt does not matter. With 'receipt'
-- only what is trained counts, once the trainer says so (credit.lua), and the visit leaves the evidence as it is.
local function finish_prompt(prompt, event, outcomes, exponential)
  local key = prompt_key(prompt)
  local p = redis.call('HMGET', key, 'alpha', 'beta', 'event', 'epoch', 'visits')
  local alpha, beta, newest, visits = p[1], p[2], p[3] + 0, p[5] + 1
  if run.evidence == 'event' then
    if event > newest then
      local decay = run.rho ^ (event - newest)
      alpha, beta, newest = alpha * decay, beta * decay, event
    end
    local weight = run.rho ^ (newest - event)
    for _, outcome in ipairs(outcomes) do
      alpha, beta = alpha + weight * outcome, beta + weight * (1 - outcome)
    end
  end
  redis.call('HSET', key, 'alpha', alpha, 'beta', beta, 'event', newest, 'value', alpha / (alpha + beta),
    'visits', visits, 'attempts', 0, 'lost', 0)
  redis.call('ZADD', PROMPTS, prompt_score(alpha, beta, p[4] + visits, exponential), prompt)
end
