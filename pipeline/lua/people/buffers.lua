-- For people; headrace runs none of this folder. All buffers of a run as a table. It only reads:
--
--   redis-cli -p PORT --raw --eval pipeline/lua/people/buffers.lua 'hr:{demo}'
--   redis-cli --user viewer --raw EVAL_RO "$(cat pipeline/lua/people/buffers.lua)" 1 'hr:{demo}'
--
-- KEYS  [1] the run
-- returns text
local RUN = KEYS[1]
local fields = { 'version', 'head', 'oldest', 'max_staleness', 'batch_size', 'buffer_capacity', 'paused', 'stopped' }
local found = redis.call('HMGET', RUN, unpack(fields))
if not found[1] then return 'no run ' .. RUN .. ' in this Redis' end
local run = {}
for i, name in ipairs(fields) do run[name] = found[i] end

local lines = { string.format('version %s, next batch %s; a batch takes %s of %s places, at most %s versions late',
  run.version, run.head, run.batch_size, run.buffer_capacity, run.max_staleness) }
for _, name in ipairs({ 'paused', 'stopped' }) do
  if run[name] ~= '' then lines[#lines + 1] = name .. ': ' .. run[name] end
end
local row = '%6s  %-19s  %8s  %8s  %4s  %4s  %11s  %s'
lines[#lines + 1] = string.format(row, 'buffer', 'state', 'occupied', 'reserved', 'due', 'over', 'min_version', ''):gsub('%s+$', '')
for number = run.oldest, run.version + run.max_staleness do
  local key = RUN .. ':buffer:' .. number
  local b = redis.call('HMGET', key, 'state', 'occupied', 'reserved', 'due', 'over', 'min_version')
  local note = number == tonumber(run.head) and '<- next' or ''
  lines[#lines + 1] = string.format(row, number, b[1] or 'PENDING', b[2] or 0, b[3] or 0, b[4] or 0, b[5] or 0,
    (b[6] or '') == '' and '-' or b[6], note):gsub('%s+$', '')
end
return table.concat(lines, '\n')
