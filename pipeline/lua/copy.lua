#!lua flags=no-writes
-- What Redis holds of a run at one moment, but for the entries of its streams, which may be gigabytes, and for its
-- prompts: they are the most keys, and MULTI reads them beside this in a tenth of the time that Lua takes.
-- KEYS  hr:{run}; finds all others of the run
-- returns how many prompts, {{key, type, ms when it expires or -1, what is in it}, ...}: as HGETALL, ZRANGE WITHSCORES,
--         LRANGE or XINFO STREAM answer
local PROMPT = KEYS[1] .. ':prompt:'

local function contents(key, type)
  if type == 'hash' then return redis.call('HGETALL', key) end
  if type == 'zset' then return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  if type == 'list' then return redis.call('LRANGE', key, 0, -1) end
  if type == 'stream' then return redis.call('XINFO', 'STREAM', key) end
  return {}
end

local found, prompts, seen, cursor = {}, 0, {}, '0'
repeat
  local answer = redis.call('SCAN', cursor, 'MATCH', KEYS[1] .. '*', 'COUNT', 10000)
  cursor = answer[1]
  for _, key in ipairs(answer[2]) do
    if not seen[key] then -- SCAN may name one twice
      seen[key] = true
      if string.sub(key, 1, #PROMPT) == PROMPT then
        prompts = prompts + 1
      else
        local type = redis.call('TYPE', key).ok
        found[#found + 1] = { key, type, redis.call('PEXPIRETIME', key), contents(key, type) }
      end
    end
  end
until cursor == '0'
return { prompts, found }
