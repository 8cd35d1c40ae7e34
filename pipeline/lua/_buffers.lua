-- The window head .. version + max_staleness, and the one idea: count reservations by deadline.
--
--   cap(b) = B' while occupied(b) < B, else occupied(b);   due(b) = reservations with deadline b
--   s = 0;  for b in head..k:  s = max(s, 0) + cap(b) - occupied(b) - due(b);      slack(k) = s
--
-- slack(k) >= 0 for every k: everybody in flight can still be placed in time (earliest deadline first).
-- hr:{run}:buffer:<v>          state occupied reserved due over capacity target min_version
-- hr:{run}:buffer:<v>:entries  entry -> V_traj * 2^32 + finishing number
local window, last

local function buffer_key(b) return RUN .. ':buffer:' .. b end
local function members_key(b) return RUN .. ':buffer:' .. b .. ':entries' end

local function read_window()
  window, last = {}, run.version + run.max_staleness
  for b = run.head, last do
    local f = redis.call('HMGET', buffer_key(b), 'occupied', 'due', 'reserved', 'over', 'state')
    window[b] = { occupied = tonumber(f[1]) or 0, due = tonumber(f[2]) or 0, reserved = tonumber(f[3]) or 0,
      over = tonumber(f[4]) or 0, state = f[5] }
  end
end

local function cap(b)
  return window[b].occupied < run.batch_size and run.buffer_capacity or window[b].occupied
end

local function slacks()
  local slack, s = {}, 0
  for b = run.head, last do
    s = math.max(s, 0) + cap(b) - window[b].occupied - window[b].due
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
  window[b].occupied, window[b].moved = window[b].occupied + 1, true
end

local function take(entry, b)
  redis.call('ZREM', members_key(b), entry)
  window[b].occupied, window[b].moved = window[b].occupied - 1, true
end

local function due(b, by)
  if window[b] then window[b].due, window[b].counted = window[b].due + by, true end
end

-- The slot view: placeholders as late as their deadlines allow; what is left over is shown as `over` of head.
local function show_window()
  local undrawn = 0
  for b = last, run.head, -1 do
    local w = window[b]
    undrawn = undrawn + w.due
    local open = cap(b) - w.occupied
    local reserved = math.min(undrawn, open)
    undrawn = undrawn - reserved
    local over = b == run.head and undrawn or 0
    local state
    if w.occupied >= run.batch_size then
      state = run.buffer_capacity > run.batch_size and 'READY_WITH_CAPACITY' or 'READY'
    else
      state = reserved < open and 'PENDING' or 'STUCK'
    end
    if not w.state then
      redis.call('HSET', buffer_key(b), 'capacity', run.buffer_capacity, 'target', run.batch_size, 'min_version', '')
    end
    if w.moved or w.counted or reserved ~= w.reserved or over ~= w.over or state ~= w.state then
      local shown = { 'state', state, 'occupied', w.occupied, 'reserved', reserved, 'due', w.due, 'over', over }
      if w.moved then
        local oldest = redis.call('ZRANGE', members_key(b), 0, 0, 'WITHSCORES')[2]
        shown[11], shown[12] = 'min_version', oldest and math.floor(tonumber(oldest) / SHIFT) or ''
      end
      redis.call('HSET', buffer_key(b), unpack(shown))
    end
  end
end
