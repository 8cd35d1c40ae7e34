-- The window head .. version + max_staleness, and the one idea: count reservations by deadline.
--
--   cap(b) = B' while occupied(b) < B, else occupied(b);   due(b) = reservations with deadline b
--   s = 0;  for b in head..k:  s = max(s, 0) + cap(b) - occupied(b) - due(b);      slack(k) = s
--
-- slack(k) >= 0 for every k: everybody in flight can still be placed in time (earliest deadline first).
-- hr:{run} window              occupied/due/min_version of each buffer, from the last down to head: '1/4/7 2/3/6 '
-- hr:{run}:buffer:<v>          what a reader sees: state occupied reserved due over capacity target min_version
-- hr:{run}:buffer:<v>:entries  entry -> V_traj * 2^32 + finishing number
local last, first_shown, window, shown = nil, run.head, {}, {}

local function buffer_key(b) return RUN .. ':buffer:' .. b end
local function members_key(b) return RUN .. ':buffer:' .. b .. ':entries' end

local function open_window()
  last = run.version + run.max_staleness
  local b = last
  for text, occupied, due, oldest in string.gmatch(run.window, '((%d+)/(%d+)/(%d*))') do
    occupied, due = occupied + 0, due + 0
    window[b] = { occupied = occupied, due = due, oldest = oldest, slack = 0 }
    shown[b] = { occupied = occupied, due = due, oldest = oldest, text = text }
    b = b - 1
  end
end

-- after head or version moved
local function move_window()
  last = run.version + run.max_staleness
  for b = run.head, last do
    window[b] = window[b] or { occupied = 0, due = 0, oldest = '', slack = 0 }
  end
end

local function open_places(buffer)
  return buffer.occupied < run.batch_size and run.buffer_capacity - buffer.occupied or 0
end

local function find_slack()
  local s = 0
  for b = run.head, last do
    s = math.max(s, 0) + open_places(window[b]) - window[b].due
    window[b].slack = s
  end
end

local function put(entry, score, b)
  redis.call('ZADD', members_key(b), score, entry)
  local buffer, version = window[b], math.floor(score / SHIFT)
  buffer.occupied = buffer.occupied + 1
  if buffer.oldest == '' or version < buffer.oldest + 0 then buffer.oldest = version end
end

local function take(entry, b)
  redis.call('ZREM', members_key(b), entry)
  local oldest = redis.call('ZRANGE', members_key(b), 0, 0, 'WITHSCORES')[2]
  window[b].occupied, window[b].oldest = window[b].occupied - 1, oldest and math.floor(oldest / SHIFT) or ''
end

local function count_due(b, by)
  if window[b] then window[b].due = window[b].due + by end
end

-- slots of a buffer: placeholders as late as their deadlines allow; undrawn: those of later deadlines that are left
local function slots(buffer, undrawn)
  local open = open_places(buffer)
  undrawn = undrawn + buffer.due
  local reserved = math.min(undrawn, open)
  local state = reserved < open and 'PENDING' or 'STUCK'
  if buffer.occupied >= run.batch_size then
    state = run.buffer_capacity > run.batch_size and 'READY_WITH_CAPACITY' or 'READY'
  end
  return state, reserved, undrawn - reserved
end

local function change(fields, name, value, before)
  if value ~= before then fields[#fields + 1], fields[#fields + 2] = name, value end
end

-- Writes the window, fields of the run beside it, and of each buffer what a reader would see changed.
local function show_window(...)
  local texts, undrawn, undrawn_before = {}, 0, 0
  for b = last, run.head, -1 do
    local buffer, before, fields, text = window[b], shown[b], {}, nil
    local state, reserved, state_before, reserved_before
    state, reserved, undrawn = slots(buffer, undrawn)
    if before then
      state_before, reserved_before, undrawn_before = slots(before, undrawn_before)
      text = before.text
    else
      before, fields = {}, { 'capacity', run.buffer_capacity, 'target', run.batch_size, 'over', 0 }
    end
    change(fields, 'state', state, state_before)
    change(fields, 'reserved', reserved, reserved_before)
    change(fields, 'occupied', buffer.occupied, before.occupied)
    change(fields, 'due', buffer.due, before.due)
    change(fields, 'min_version', buffer.oldest, before.oldest)
    if b == run.head then change(fields, 'over', undrawn, b == first_shown and undrawn_before or 0) end
    if #fields > 0 then
      redis.call('HSET', buffer_key(b), unpack(fields))
      text = buffer.occupied .. '/' .. buffer.due .. '/' .. buffer.oldest
    end
    texts[#texts + 1] = text
  end
  run.window = table.concat(texts, ' ')
  redis.call('HSET', RUN, 'window', run.window, ...)
end
