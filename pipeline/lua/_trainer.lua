-- Only the incarnation that joined last may consume, publish and checkpoint.
if run.trainer ~= ARGV[5] then return reply('FENCED', run.trainer) end
