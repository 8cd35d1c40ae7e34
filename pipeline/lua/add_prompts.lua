#!lua
-- include: _call _by_coordinator _found _run _check _race
-- Prompts enter the race. One that is known already, idle, in flight or in quarantine, is left as it is. A new one comes
-- into the present epoch; one that a checkpoint has is again where it was.
-- KEYS  the run's fixed keys; builds prompt:<id>
-- ARGV  [5...] id, payload, alpha, beta, event, visits, epoch ('' : the present one), Exp(1) of each prompt
-- returns OK, how many were new
local added = 0
for i = 5, #ARGV, 8 do
  local prompt, alpha, beta = ARGV[i], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local event, visits, epoch = ARGV[i + 4], tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6])
  if redis.call('EXISTS', prompt_key(prompt)) == 0 then
    epoch = epoch or run.sampler == 'shuffle' and math.max(math.floor(run.clock), 0) or 0
    redis.call('HSET', prompt_key(prompt), 'payload', ARGV[i + 1], 'alpha', ARGV[i + 2], 'beta', ARGV[i + 3],
      'event', event, 'value', alpha / (alpha + beta), 'visits', visits, 'epoch', epoch, 'attempts', 0, 'lost', 0)
    redis.call('ZADD', PROMPTS, prompt_score(alpha, beta, epoch + visits, tonumber(ARGV[i + 7])), prompt)
    added = added + 1
  end
end
if added > 0 then record('prompts', 'added', added) end
return reply('OK', added)
