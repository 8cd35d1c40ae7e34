-- Only the incarnation that joined last may consume, publish and checkpoint.
local t = redis.call('HMGET', RUN, 'trainer', 'oldest', 'checkpoint')
run.trainer, run.oldest, run.checkpoint = t[1], tonumber(t[2]), tonumber(t[3])
if run.trainer ~= ARGV[5] then return reply('FENCED', run.trainer) end
