-- The window head .. version + max_staleness, and the one idea: count reservations by deadline.
--
--   cap(b) = B' while occupied(b) < B, else occupied(b);   due(b) = reservations with deadline b
--   s = 0;  for b in head..k:  s = max(s, 0) + cap(b) - occupied(b) - due(b);      slack(k) = s
--
-- slack(k) >= 0 for every k: everybody in flight can still be placed in time (earliest deadline first).
-- hr:{run} window              occupied/due of each buffer of the window, from head on: '3/2 4/1'
-- hr:{run}:buffer:<v>          what a reader sees: state occupied reserved due over capacity target min_version
-- hr:{run}:buffer:<v>:entries  entry -> V_traj * 2^32 + finishing number
local last, occupied, due, moved, shown

local function buffer_key(b) return RUN .. ':buffer:' .. b end
local function members_key(b) return RUN .. ':buffer:' .. b .. ':entries' end

local function cap(b)
  return occupied[b] < run.batch_size and run.buffer_capacity or occupied[b]
end

-- slots per buffer: placeholders as late as their deadlines allow; what is left over is shown as `over` of head
local function view()
  local reserved, states, undrawn = {}, {}, 0
  for b = last, run.head, -1 do
    local open = cap(b) - occupied[b]
    undrawn = undrawn + due[b]
    reserved[b] = math.min(undrawn, open)
    undrawn = undrawn - reserved[b]
    if occupied[b] >= run.batch_size then
      states[b] = run.buffer_capacity > run.batch_size and 'READY_WITH_CAPACITY' or 'READY'
    else
      states[b] = reserved[b] < open and 'PENDING' or 'STUCK'
    end
  end
  return { reserved = reserved, states = states, head = run.head, over = undrawn }
end

local function open_window()
  last, occupied, due, moved = run.version + run.max_staleness, {}, {}, {}
  local b = run.head
  for o, d in string.gmatch(run.window, '(%d+)/(%d+)') do
    occupied[b], due[b], b = tonumber(o), tonumber(d), b + 1
  end
  shown = view()
end

-- after head or version moved
local function move_window()
  last = run.version + run.max_staleness
  for b = run.head, last do
    occupied[b], due[b] = occupied[b] or 0, due[b] or 0
  end
end

local function slacks()
  local slack, s = {}, 0
  for b = run.head, last do
    s = math.max(s, 0) + cap(b) - occupied[b] - due[b]
    slack[b] = s
  end
  return slack
end

-- slack(k) >= 1 for every k in from..to
local function spare(slack, from, to)
  for k = from, to do
    if slack[k] < 1 then return false end
  end
  return true
end

local function put(entry, score, b)
  redis.call('ZADD', members_key(b), score, entry)
  occupied[b], moved[b] = occupied[b] + 1, true
end

local function take(entry, b)
  redis.call('ZREM', members_key(b), entry)
  occupied[b], moved[b] = occupied[b] - 1, true
end

local function count_due(b, by)
  if due[b] then due[b], moved[b] = due[b] + by, moved[b] or false end
end

-- Writes the window, fields of the run beside it, and each buffer that a reader would see changed.
local function show_window(...)
  local new, counts = view(), {}
  for b = run.head, last do
    counts[#counts + 1] = occupied[b] .. '/' .. due[b]
    local state, reserved = new.states[b], new.reserved[b]
    local over, over_before = b == new.head and new.over or 0, b == shown.head and shown.over or 0
    if moved[b] ~= nil or state ~= shown.states[b] or reserved ~= shown.reserved[b] or over ~= over_before then
      local key = buffer_key(b)
      redis.call('HSET', key, 'state', state, 'occupied', occupied[b], 'reserved', reserved, 'due', due[b], 'over', over)
      if not shown.states[b] then redis.call('HSET', key, 'capacity', run.buffer_capacity, 'target', run.batch_size) end
      if moved[b] or not shown.states[b] then
        local oldest = redis.call('ZRANGE', members_key(b), 0, 0, 'WITHSCORES')[2]
        redis.call('HSET', key, 'min_version', oldest and math.floor(tonumber(oldest) / SHIFT) or '')
      end
    end
  end
  redis.call('HSET', RUN, 'window', table.concat(counts, ' '), ...)
end
