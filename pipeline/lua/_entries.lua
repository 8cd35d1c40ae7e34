-- An entry leaves: given back, cancelled, or no longer needed; and what follows from it for all others.
--
-- hr:{run}:entry:<id>  state prompt visit version deadline event value worker engine attempt reserved_ms exponential
--                      (of the prompt's return); later truncate_ms, or ids buffer finished_ms, placed (the first buffer,
--                      if it was moved), consumed_ms; of a tombstone also reason
-- EMPTY -> RESERVED -> OCCUPIED -> CONSUMED; RELEASED, SURPLUS and FILTERED are tombstones, kept for an hour.
local TOMBSTONE_S = 3600

local function entry_key(entry) return RUN .. ':entry:' .. entry end

local function bury(entry, state, reason)
  redis.call('HSET', entry_key(entry), 'state', state, 'reason', reason)
  redis.call('EXPIRE', entry_key(entry), TOMBSTONE_S)
end

-- out of the reservations
local function unreserve(entry, worker, deadline)
  redis.call('ZREM', RESERVED, entry)
  redis.call('ZREM', worker_key(worker) .. ':entries', entry)
  count_due(deadline, -1)
end

local function delete_payloads(worker, ids)
  local count = 0
  for id in string.gmatch(ids, '%S+') do
    redis.call('XDEL', stream_key(worker), id)
    count = count + 1
  end
  redis.call('HINCRBY', RUN, 'stored', -count)
  forget_worker(worker)
end

-- RESERVED -> RELEASED. failed and retry count as attempts and lost toward max_lost; cancelled and surplus toward nothing.
-- why: what happened, for a person
local function release(entry, reason, why)
  local e = redis.call('HMGET', entry_key(entry), 'prompt', 'worker', 'deadline', 'exponential')
  local prompt, worker = e[1], e[2]
  unreserve(entry, worker, tonumber(e[3]))
  bury(entry, reason == 'surplus' and 'SURPLUS' or 'RELEASED', reason)
  redis.call('HINCRBY', COUNTERS, 'released:' .. reason, 1)
  why = why or ''
  record('released', 'entry', entry, 'prompt', prompt, 'worker', worker, 'reason', reason, 'why', why)

  if reason == 'cancelled' or reason == 'surplus' then return idle(prompt, tonumber(e[4])) end
  local last = why == '' and '' or '; the last one: ' .. why
  local spent = reason == 'lost' and 'lost' or 'attempts'
  local limit = tonumber(field('max_' .. spent))
  if redis.call('HINCRBY', prompt_key(prompt), spent, 1) >= limit then
    quarantine(prompt, reason .. ' ' .. limit .. ' times' .. last)
  else
    retry(prompt)
  end
  if reason ~= 'failed' then return end
  local failures = redis.call('HINCRBY', RUN, 'consecutive_failures', 1)
  if failures >= tonumber(field('max_consecutive_failures')) then
    stop(failures .. ' failures in a row, and not one finished trajectory between them' .. last .. GO_ON)
  end
end

-- surplus: reservations that can be used nowhere any more, because all buffers up to their deadline are READY
local function release_surplus()
  local full = run.head - 1
  while full < last and window[full + 1].occupied >= run.batch_size do full = full + 1 end
  if full < run.head then return false end
  local entries = redis.call('ZRANGEBYSCORE', RESERVED, '-inf', (full + 1) * SHIFT - 1)
  for _, entry in ipairs(entries) do release(entry, 'surplus') end
  return #entries > 0
end

-- pull forward: an OCCUPIED entry of a later buffer into an earlier open place, oldest V_traj first
local function pull_forward()
  find_slack()
  for b = run.head, last do
    if window[b].occupied < run.batch_size then
      local entry, score, from
      for later = b + 1, last do
        if window[later - 1].slack < 1 then break end
        local first = window[later].occupied > 0 and redis.call('ZRANGE', members_key(later), 0, 0, 'WITHSCORES')
        if first and (not score or tonumber(first[2]) < score) then
          entry, score, from = first[1], tonumber(first[2]), later
        end
      end
      if entry then
        take(entry, from)
        put(entry, score, b)
        redis.call('HSETNX', entry_key(entry), 'placed', from)
        redis.call('HSET', entry_key(entry), 'buffer', b)
        record('moved', 'entry', entry, 'from', from, 'buffer', b)
        return true
      end
    end
  end
  return false
end

-- after every transition that fills a place or drops a reservation: to a fixed point, then what a reader sees
local function settle(...)
  while release_surplus() or pull_forward() do end
  show_window(...)
end
