-- Moves the rows, writes the journal, parks the letters and runs the user's commands, if every row is still as it was read,
-- and the letter that is replayed, if one is, still there. Otherwise nothing changes, and the reply carries the rows as they are.
--
-- KEYS  groups, the hash that holds the rows, letters, turn, tries, deployments, then each row's journal; or, if there are
--       no rows, the key that remembers the attempt
-- ARGV  the turn that the caller holds or ''; the letter to remove or ''; group, its new row or '';
--       deployments: count, then each topic and name whose start is forced here, which must not be stored yet
--       rows:     count, then each: field, text as read ('' if absent), new text, count of entries, entries
--       letters:  count, letters
--       commands: count, where they belong, the letter of those without a record;
--                 then each: its letter or '', count of words, words
--
-- A script that fails is not rolled back. So whatever can fail comes before the first write: after it Redis refuses no
-- command of a script for want of memory, disk or replicas. What the user asked for comes last and runs protected.
-- Offsets stay text: a Lua number would round them above 2^53. Texts are JSON arrays that lack their last item, the time.

local taken = 0
local function take()
  taken = taken + 1
  return ARGV[taken]
end

local time = redis.call('TIME')
local at = ',' .. time[1] .. ('0'):rep(6 - #time[2]) .. time[2] .. ']'

local my_turn, replayed, group, new_group = take(), take(), take(), take()
local forced = {}
for i = 1, tonumber(take()) do forced[i] = take() end
local rows, found, unchanged, landed = {}, {}, true, true
for i = 1, tonumber(take()) do
  local row = {field = take(), before = take(), after = take(), journal = KEYS[6 + i], entries = {}}
  for e = 1, tonumber(take()) do row.entries[e] = take() .. at end
  local now = redis.call('HGET', KEYS[2], row.field) or ''
  unchanged = unchanged and now == row.before
  landed = landed and now:sub(1, #row.after) == row.after
  if now ~= '' then found[#found + 1] = now end
  rows[i] = row
end

-- Each text names its attempt, so this attempt was carried out before: its reply was lost and a client sent it again.
if landed and #rows > 0 then return {1, 0} end
local attempt = #rows == 0 and KEYS[7]
local done = attempt and redis.call('GET', attempt)
if done then return {1, tonumber(done)} end

-- Whoever cannot get a change in edgeways asks for a turn; the others wait meanwhile. It expires if its holder dies.
local turn = redis.call('GET', KEYS[4])
if turn and turn ~= my_turn then return {2, 0} end
for _, name in ipairs(forced) do unchanged = unchanged and redis.call('HEXISTS', KEYS[6], name) == 0 end
if not unchanged then return {0, '[' .. table.concat(found, ',') .. ']'} end
local letter_id = replayed .. '-0'
if replayed ~= '' and #redis.call('XRANGE', KEYS[3], letter_id, letter_id) == 0 then return {0, '[]'} end

-- A key of another type fails here, not halfway.
for _, row in ipairs(rows) do redis.call('LLEN', row.journal) end
redis.call('XLEN', KEYS[3])
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[6])
local is_new_group = new_group ~= '' and redis.call('HEXISTS', KEYS[1], group) == 0

if attempt then redis.call('SET', attempt, 0, 'PX', 600000) end
if turn then redis.call('DEL', KEYS[4]) end
if replayed ~= '' then
  redis.call('XDEL', KEYS[3], letter_id)
  redis.call('HDEL', KEYS[5], replayed .. ':attempts', replayed .. ':error')
end
if is_new_group then redis.call('HSET', KEYS[1], group, new_group .. at) end
for _, name in ipairs(forced) do redis.call('HSET', KEYS[6], name, time[1]) end
for _, row in ipairs(rows) do
  redis.call('HSET', KEYS[2], row.field, row.after .. at)
  redis.call('RPUSH', row.journal, unpack(row.entries))
end

-- The stream is its own counter: it remembers its last id even when the letter is gone.
local last_letter
local function park(letter)
  if not last_letter then
    last_letter = 0
    local info = redis.call('EXISTS', KEYS[3]) == 1 and redis.call('XINFO', 'STREAM', KEYS[3]) or {}
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then last_letter = tonumber(info[i + 1]:match('^%d+')) end
    end
  end
  last_letter = last_letter + 1
  redis.call('XADD', KEYS[3], ('%.0f-0'):format(last_letter), 'letter', letter .. at)
end

for _ = 1, tonumber(take()) do park(take()) end

local commands, where, no_record, failed = tonumber(take()), take(), take(), 0
for i = 1, commands do
  local letter, words = take(), {}
  for w = 1, tonumber(take()) do words[w] = take() end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then
    failed = failed + 1
    local told = ('%s failed, command %d of %d of %s: %s'):format(words[1], i, commands, where, reply.err)
    told = told:gsub('[^\32-\126]', '?') -- ASCII, so that any client can read it
    park((letter ~= '' and letter or no_record) .. ',' .. cjson.encode(told))
  end
end
if attempt and failed > 0 then redis.call('SET', attempt, failed, 'PX', 600000) end
return {1, failed}
