-- The refs of a buffer, in its order (V_traj, finishing number): entry, worker (its stream), ids, ...
local function refs(b)
  local answer = {}
  for _, entry in ipairs(redis.call('ZRANGE', members_key(b), 0, -1)) do
    local e = redis.call('HMGET', RUN .. ':entry:' .. entry, 'worker', 'ids')
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = entry, e[1], e[2]
  end
  return answer
end
