-- The proactive filter: the trainer waits for head, nothing more can be reserved for it, and few reservations are left
-- that could fill it. Those are aborted, once all of them have run for `proactive_patience_ms`.
--   retry     released, their prompts first in line for a fresh worker
--   truncate  their workers are told to finish with what they have; who has not, another patience later, is released
local function abort_slow(released)
  local p = redis.call('HMGET', RUN, 'proactive', 'awaited', 'proactive_threshold', 'proactive_patience_ms')
  local method, patience = p[1], tonumber(p[4])
  if method == '' or tonumber(p[2]) ~= run.head then return end

  find_slack()
  local head, full = window[run.head], window[last].slack < 1 or redis.call('ZCARD', PROMPTS) == 0
  local remaining = math.min(redis.call('ZCARD', RESERVED), run.buffer_capacity - head.occupied)
  if head.occupied >= run.batch_size or not full or remaining > tonumber(p[3]) then return end

  local victims, told = redis.call('ZRANGE', RESERVED, 0, remaining - 1), {}
  for i, entry in ipairs(victims) do
    local e = redis.call('HMGET', entry_key(entry), 'reserved_ms', 'truncate_ms', 'worker')
    if now - tonumber(e[1]) < patience then return end
    told[i] = { at = tonumber(e[2]), worker = e[3] }
  end
  for i, entry in ipairs(victims) do
    if method == 'truncate' and not told[i].at then
      redis.call('HSET', entry_key(entry), 'truncate_ms', now)
      record('truncate', 'entry', entry, 'worker', told[i].worker)
    elseif method == 'retry' or now - told[i].at >= patience then
      release(entry, 'retry')
      released[#released + 1] = entry
    end
  end
end
