-- Only the incarnation that joined last may consume, publish and checkpoint.
if redis.call('HGET', RUN, 'trainer') ~= ARGV[5] then return reply('FENCED', redis.call('HGET', RUN, 'trainer')) end
