-- Buffers that no kept checkpoint needs go, with their entries and payloads.
local function forget_buffers(from, to)
  for b = from, to do
    for _, entry in ipairs(redis.call('ZRANGE', members_key(b), 0, -1)) do
      local f = redis.call('HMGET', entry_key(entry), 'worker', 'ids')
      redis.call('DEL', entry_key(entry))
      delete_payloads(f[1], f[2])
    end
    redis.call('DEL', members_key(b), buffer_key(b))
  end
end
