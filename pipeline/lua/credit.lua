#!lua flags=allow-oom
-- include: _call _by_trainer _found _run _check _trainer _race
-- What update `version` was trained on becomes evidence (SPO), once, after that of all updates before: for each credit
--   alpha <- retention * alpha + outcome,   beta <- retention * beta + 1 - outcome
-- So evidence follows from the credits alone, in their order; whoever lost some gets the same again by repeating them.
-- An idle prompt moves in the race: what is left of its wait is Exp(1) / weight again, by memorylessness, at any time. A
-- retry stays first in line. What is in flight keeps its frozen value, and returns at the weight of that moment.
-- KEYS  the run's fixed keys; builds prompt:<credited>
-- ARGV  [5] trainer, version, [7...] prompt, retention, outcome of each credit
-- returns CREDITED | REPLAYED | AHEAD | UNCREDITED, first version not credited | NO_EVIDENCE | PROMPT, the unknown one
--         | FENCED, trainer
local version, credited = tonumber(ARGV[6]), tonumber(field('credited'))
if run.evidence ~= 'receipt' then return reply('NO_EVIDENCE') end
if version < credited then return reply('REPLAYED') end
if version >= run.head then return reply('AHEAD') end
if version > credited then return reply('UNCREDITED', credited) end
for i = 7, #ARGV, 3 do
  if redis.call('EXISTS', prompt_key(ARGV[i])) == 0 then return reply('PROMPT', ARGV[i]) end
end

local prompts = {}
for i = 7, #ARGV, 3 do
  local prompt, retention, outcome = ARGV[i], ARGV[i + 1] + 0, ARGV[i + 2] + 0
  local p = redis.call('HMGET', prompt_key(prompt), 'alpha', 'beta')
  local alpha, beta = retention * p[1] + outcome, retention * p[2] + 1 - outcome
  redis.call('HSET', prompt_key(prompt), 'alpha', alpha, 'beta', beta, 'value', alpha / (alpha + beta))
  local place = run.sampler ~= 'shuffle' and redis.call('ZSCORE', PROMPTS, prompt)
  if place and place - run.clock > 0 then
    local ratio = prompt_weight(p[1], p[2]) / prompt_weight(alpha, beta)
    redis.call('ZADD', PROMPTS, run.clock + (place - run.clock) * ratio, prompt)
  end
  prompts[#prompts + 1] = prompt
end
redis.call('HSET', RUN, 'credited', version + 1)
record('credited', 'version', version, 'prompts', #prompts > 0 and cjson.encode(prompts) or '[]')
return reply('CREDITED')
