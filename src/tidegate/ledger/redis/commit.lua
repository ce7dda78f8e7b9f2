-- Moves the rows, writes the journal, parks the letters and runs the user's commands, all in one step. It does so only if
-- every row still has the text that was read, and if the letter under replay, if any, still exists. Otherwise it changes
-- nothing and returns the present rows.
--
-- KEYS  groups, the hash of the rows, letters, turn, tries, deployments, then the journal of each row; and, except for an
--       advance, the key that marks the attempt
-- ARGV  prefix of the coarse history's keys, and how many days to keep them (0: for ever);
--       how many milliseconds to keep the attempt's key; the turn that the caller holds or ''; the letter to remove or '';
--       group, the row to store if the group is new, or '';
--       deployments: count, then the fields of topics whose start is forced here, which must not be stored yet
--       rows:     count, then for each: field, text as read ('' if absent), new text, and lines: the first is one of: since
--                 when the entry that is extended has been open; a completed history bucket and its records; ''.
--                 The others are journal entries
--       letters:  count, letters
--       commands: count, description of the work, the letter for commands without a record;
--                 then for each: its letter or '', count of words, words
--
-- Redis does not roll back a script that fails. Therefore everything that can fail comes before the first write; after it,
-- Redis does not refuse the script's commands for lack of memory, disk or replicas. The user's commands come last, and run
-- by pcall, so that their errors do not end the script.
-- Offsets stay text, because a Lua number would round them above 2^53. New texts are JSON arrays without their last item, the
-- time, which this script adds.
--
-- Returns {1, failed commands} if it was carried out, now or before; {0, rows as a JSON array} if the rows, a deployment or
-- the letter did not match; {2, 0} if another process has its turn or the attempt was given up; {3, time} if an entry is too
-- old to be extended.

local taken = 0
local function take()
  taken = taken + 1
  return ARGV[taken]
end

local time = redis.call('TIME')
local at = ',' .. time[1] .. ('0'):rep(6 - #time[2]) .. time[2] .. ']'

-- Returns the first line, and the others as entries.
local function lines(text)
  local stop, entries = text:find('\n', 1, true) or #text + 1, {}
  local first, from = text:sub(1, stop - 1), stop + 1
  while from <= #text do
    stop = text:find('\n', from, true) or #text + 1
    entries[#entries + 1] = text:sub(from, stop - 1) .. at
    from = stop + 1
  end
  return first, entries
end

local history, days = take(), tonumber(take())
local remembered, my_turn, replayed, group, new_group = take(), take(), take(), take(), take()
local forced = {}
for i = 1, tonumber(take()) do forced[i] = take() end
local rows, found, unchanged, landed = {}, {}, true, true
for i = 1, tonumber(take()) do
  local row = {field = take(), before = take(), after = take(), journal = KEYS[6 + i]}
  local more
  more, row.entries = lines(take())
  row.since = tonumber(more)
  if not row.since then row.bucket, row.records = more:match('(%d+) (%d+)') end
  local now = redis.call('HGET', KEYS[2], row.field) or ''
  unchanged = unchanged and now == row.before
  landed = landed and now:sub(1, #row.after) == row.after
  if now ~= '' then found[#found + 1] = now end
  rows[i] = row
end

-- If this attempt was carried out before, its reply was lost and a client sent it again. The attempt's key shows that, or the
-- texts of the rows, which contain the attempt's id. If its caller has given it up ('void'), it is never carried out.
local attempt = KEYS[7 + #rows]
local done = attempt and redis.call('GET', attempt)
if done == 'void' then return {2, 0} end
if done then return {1, tonumber(done)} end
if landed and #rows > 0 then return {1, 0} end

-- An entry can be extended for one minute.
local now = time[1] * 1000000 + time[2] -- 16 digits: a Lua number holds them exactly
for _, row in ipairs(rows) do
  if row.since and unchanged and (row.since > now or now - row.since >= 60000000) then return {3, ('%.0f'):format(now)} end
end

-- A process whose changes keep losing against others takes a turn; the others wait meanwhile. It expires if its holder dies.
local turn = redis.call('GET', KEYS[4])
if turn and turn ~= my_turn then return {2, 0} end
for _, name in ipairs(forced) do unchanged = unchanged and redis.call('HEXISTS', KEYS[6], name) == 0 end
if not unchanged then return {0, '[' .. table.concat(found, ',') .. ']'} end
local letter_id = replayed .. '-0'
if replayed ~= '' and #redis.call('XRANGE', KEYS[3], letter_id, letter_id) == 0 then return {0, '[]'} end

-- Read every key that may be written before the first write, so that a key of the wrong type fails here and not halfway. Only
-- the open entry is replaced by its extension. Without letters and commands, four arguments are left.
for _, row in ipairs(rows) do
  local last = redis.call('LINDEX', row.journal, -1)
  local open = row.since and row.entries[1]:match('^%[%d+,')
  row.extends = open and last and last:sub(1, #open) == open
end
if replayed ~= '' or #ARGV - taken > 4 then redis.call('XLEN', KEYS[3]) end
if replayed ~= '' then redis.call('HLEN', KEYS[5]) end
if #forced > 0 then redis.call('HLEN', KEYS[6]) end
local is_new_group = new_group ~= '' and redis.call('HEXISTS', KEYS[1], group) == 0

if attempt then redis.call('SET', attempt, 0, 'PX', remembered) end
if turn then redis.call('DEL', KEYS[4]) end
if replayed ~= '' then
  redis.call('XDEL', KEYS[3], letter_id)
  redis.call('HDEL', KEYS[5], replayed .. ':attempts', replayed .. ':error')
end
if is_new_group then redis.call('HSET', KEYS[1], group, new_group .. at) end
for _, name in ipairs(forced) do redis.call('HSET', KEYS[6], name, time[1]) end
for _, row in ipairs(rows) do
  redis.call('HSET', KEYS[2], row.field, row.after .. at)
  if row.extends then
    redis.call('LSET', row.journal, -1, row.entries[1])
  elseif #row.entries > 0 then
    redis.call('RPUSH', row.journal, unpack(row.entries))
  end
  if row.bucket then -- a hash for each day, which goes by itself
    local day = math.floor(tonumber(row.bucket) / 86400)
    local key = history .. ('%d:'):format(day) .. row.field .. ':' .. group
    redis.call('HINCRBY', key, row.bucket, row.records)
    if days > 0 then redis.call('EXPIREAT', key, (day + 1 + days) * 86400) end
  end
end

-- The stream numbers the letters: it keeps its last id even if that letter is deleted.
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
if attempt and failed > 0 then redis.call('SET', attempt, failed, 'PX', remembered) end
return {1, failed}
