-- For people; headrace runs none of this folder. One entry's life, from its hash and from the events that are kept in
-- Redis (events.jsonl has them all). It only reads:
--
--   redis-cli -p PORT --raw --eval pipeline/lua/people/entry.lua 'hr:{demo}' , 3f9a1c
--   redis-cli --user viewer --raw EVAL_RO "$(cat pipeline/lua/people/entry.lua)" 1 'hr:{demo}' 3f9a1c
--
-- KEYS  [1] the run
-- ARGV  [1] the entry, or its beginning; without it, the one that was placed last
-- returns text; times are UTC
local RUN, wanted = KEYS[1], ARGV[1] or ''
local PAGE = 1000

local function each_event(visit) -- until it answers true
  local from = '-'
  repeat
    local rows = redis.call('XRANGE', RUN .. ':events', from, '+', 'COUNT', PAGE)
    for _, row in ipairs(rows) do
      local event = {}
      for i = 1, #row[2], 2 do event[row[2][i]] = row[2][i + 1] end
      if visit(event) then return end
      from = '(' .. row[1]
    end
  until #rows < PAGE
end

if wanted == '' then
  each_event(function(event)
    if event.kind == 'placed' then wanted = event.entry end
  end)
  if wanted == '' then return 'no entry has been placed in ' .. RUN .. ' yet' end
end

local entry = redis.call('EXISTS', RUN .. ':entry:' .. wanted) == 1 and wanted
local life = {}
each_event(function(event)
  local id = event.entry
  if id and not entry and string.sub(id, 1, #wanted) == wanted then entry = id end
  if id and id == entry then
    life[#life + 1] = event
  elseif entry and event.kind == 'consumed' then
    local number = 0
    for id in string.gmatch(event.entries, '%S+') do
      number = number + 1
      if id == entry then
        event.number = number
        life[#life + 1] = event
      end
    end
  end
end)
if not entry then
  return 'no entry that begins with ' .. wanted .. ' in ' .. RUN .. ' or its events: grep events.jsonl for it'
end

local sentences = {
  reserved = 'by $worker at $engine, of prompt $prompt at value $value, under version $version: due in buffer $deadline',
  placed = 'in buffer $buffer; its oldest segment is of version $oldest',
  moved = 'forward, from buffer $from to $buffer',
  consumed = 'by the trainer, as number $number of batch $buffer',
  released = '$reason $why',
  truncate = 'its worker shall finish it with what it has',
  surplus = 'finished, and no buffer needs it',
  filtered = 'finished, and its group carries no signal',
  dropped = 'a trainer that joined had trained it already',
}
local lines, before = { 'entry ' .. entry }, nil
for _, event in ipairs(life) do
  local ms = tonumber(event.ms)
  local s = math.floor(ms / 1000)
  local clock = string.format('%02d:%02d:%02d.%03d', s / 3600 % 24, s / 60 % 60, s % 60, ms % 1000)
  local after = before and string.format('+%.3f s', (ms - before) / 1000) or ''
  if event.value then event.value = string.format('%.2f', event.value) end
  local sentence = string.gsub(sentences[event.kind] or '', '%$(%w+)', function(name) return event[name] or '' end)
  lines[#lines + 1] = string.gsub(string.format('%s  %10s  %-9s %s', clock, after, event.kind, sentence), '%s+$', '')
  before = ms
end
if #life == 0 then lines[#lines + 1] = 'its events are in events.jsonl' end

local e = redis.call('HMGET', RUN .. ':entry:' .. entry, 'state', 'attempt', 'worker', 'ids', 'version', 'buffer')
if not e[1] then
  lines[#lines + 1] = 'now: forgotten, as a checkpoint has what was learnt from it'
else
  lines[#lines + 1] = 'now: ' .. e[1] .. ', attempt ' .. e[2]
  if e[6] then lines[#lines] = lines[#lines] .. ', staleness ' .. (e[6] - e[5]) end
  if e[4] and (e[1] == 'OCCUPIED' or e[1] == 'CONSUMED') then
    lines[#lines + 1] = 'trajectories: ' .. e[4] .. ' of ' .. RUN .. ':trajectories:' .. e[3]
  end
end
return table.concat(lines, '\n')
