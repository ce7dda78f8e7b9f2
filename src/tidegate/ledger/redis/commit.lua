-- Moves the rows, writes the journal, parks the letters and runs the user's commands, all in one step. It does so only if
-- every row still has the text that was read, and if the letter under replay, if any, still exists. Otherwise it changes
-- nothing and returns the present rows.
--
-- KEYS  the hash of the rows, turn, the journal of each row;
--       unless it is a plain advance: groups, letters, tries, deployments; and, except for an advance, the key that marks the
--       attempt
-- ARGV  the turn that the caller holds or '';
--       rows:     count, marks, two times, and then four columns: fields, texts as read ('' if absent), new texts, journal
--                 entries, a line each. A row has the mark '+' if its entry extends the last one, otherwise '.'. The times
--                 are those between which entries may be extended, or '' twice;
--       unless it is a plain advance:
--       how many milliseconds to keep the attempt's key; the letter to remove or ''; group, the row to store if the group is
--       new, or ''; prefix of the coarse history's keys, and how many days to keep them (0: for ever);
--       buckets:  count, then for each completed bucket of the coarse history: number of its row, its begin, its records
--       deployments: count, then the fields of topics whose start is forced here, which must not be stored yet
--       letters:  count, letters
--       commands: count, description of the work, the letter for commands without a record;
--                 then for each: its letter or '', count of words, words
--
-- Redis does not roll back a script that fails. Therefore everything that can fail comes before the first write; after it,
-- Redis does not refuse the script's commands for lack of memory, disk or replicas. The user's commands come last, and run
-- by pcall, so that their errors do not end the script.
-- Offsets stay text, because a Lua number would round them above 2^53. New texts are JSON arrays without their last item, the
-- time, which this script adds.
-- Most of the script's time goes into calls and into new strings, which Lua hashes from end to end. So rows are read and
-- written by one command for many, and an advance has no arguments that it does not need.
--
-- Returns {1, failed commands} if it was carried out, now or before; {0, rows as a JSON array} if the rows, a deployment or
-- the letter did not match; {2, 0} if another process has its turn or the attempt was given up; {3, time} if an entry is too
-- old to be extended.

local call = redis.call
local my_turn, rows, marks, earliest, latest = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local fields, befores, afters, lines = 5, 5 + rows, 5 + 2 * rows, 5 + 3 * rows
local taken = 5 + 4 * rows
local is_plain = #ARGV == taken
local function take()
  taken = taken + 1
  return ARGV[taken]
end

local time = call('TIME')
local now = time[1] .. (#time[2] == 6 and '' or ('0'):rep(6 - #time[2])) .. time[2]
local at = ',' .. now .. ']'

local remembered, replayed, group, new_group, buckets, forced = '', '', '', '', {}, {}
local groups, letters, tries, deployments, attempt
if not is_plain then
  groups, letters, tries, deployments, attempt = unpack(KEYS, 3 + rows, 7 + rows)
  remembered, replayed, group, new_group = take(), take(), take(), take()
  local history, days = take(), tonumber(take())
  for i = 1, tonumber(take()) do
    local row, begin, records = tonumber(take()), take(), take()
    local day = math.floor(tonumber(begin) / 86400) -- a hash for each day, which goes by itself
    local key = history .. ('%d:'):format(day) .. ARGV[fields + row] .. ':' .. group
    buckets[i] = {key = key, begin = begin, records = records, expires = days > 0 and (day + 1 + days) * 86400}
  end
  for i = 1, tonumber(take()) do forced[i] = take() end
end

local AT_ONCE = 1000 -- Lua passes at most 8,000 values to a function
local found, unchanged = {}, true
for from = 1, rows, AT_ONCE do
  local to = from + AT_ONCE - 1
  local some = call('HMGET', KEYS[1], unpack(ARGV, fields + from, fields + (to < rows and to or rows)))
  for i = 1, #some do
    local row, stored = from + i - 1, some[i] or ''
    found[row] = stored
    if stored ~= ARGV[befores + row] then unchanged = false end
  end
end

-- If this attempt was carried out before, its reply was lost and a client sent it again. The attempt's key shows that, or the
-- texts of the rows, which contain the attempt's id. If its caller has given it up ('void'), it is never carried out.
local done = attempt and call('GET', attempt)
if done == 'void' then return {2, 0} end
if done then return {1, tonumber(done)} end
if not unchanged then
  local landed = true
  for i, stored in ipairs(found) do
    local after = ARGV[afters + i]
    landed = landed and stored:sub(1, #after) == after
  end
  if landed then return {1, 0} end
elseif earliest ~= '' and (now < earliest or now >= latest) then -- times of 16 digits, which can be compared as texts
  return {3, now}
end

-- A process whose changes keep losing against others takes a turn; the others wait meanwhile. It expires if its holder dies.
local turn = call('GET', KEYS[2])
if turn and turn ~= my_turn then return {2, 0} end
for _, name in ipairs(forced) do unchanged = unchanged and call('HEXISTS', deployments, name) == 0 end
if not unchanged then
  local stored = {}
  for _, text in ipairs(found) do stored[#stored + 1] = text ~= '' and text or nil end
  return {0, '[' .. table.concat(stored, ',') .. ']'}
end
local letter_id = replayed .. '-0'
if replayed ~= '' and #call('XRANGE', letters, letter_id, letter_id) == 0 then return {0, '[]'} end

-- Read every key that may be written before the first write, so that a key of the wrong type fails here and not halfway. Only
-- the open entry is replaced by its extension. Without letters and commands, four arguments are left.
local extends = {}
for i = 1, rows do
  local last = call('LINDEX', KEYS[2 + i], '-1')
  if last and marks:byte(i) == 43 then -- '+'
    local stop = last:find(',', 1, true)
    extends[i] = stop and last:sub(1, stop) == ARGV[lines + i]:sub(1, stop)
  end
end
if not is_plain then
  for _, bucket in ipairs(buckets) do call('HLEN', bucket.key) end
  if replayed ~= '' or #ARGV - taken > 4 then call('XLEN', letters) end
  if replayed ~= '' then call('HLEN', tries) end
  if #forced > 0 then call('HLEN', deployments) end
  local is_new_group = new_group ~= '' and call('HEXISTS', groups, group) == 0

  if attempt then call('SET', attempt, 0, 'PX', remembered) end
  if replayed ~= '' then
    call('XDEL', letters, letter_id)
    call('HDEL', tries, replayed .. ':attempts', replayed .. ':error')
  end
  if is_new_group then call('HSET', groups, group, new_group .. at) end
  for _, name in ipairs(forced) do call('HSET', deployments, name, time[1]) end
  for _, bucket in ipairs(buckets) do
    call('HINCRBY', bucket.key, bucket.begin, bucket.records)
    if bucket.expires then call('EXPIREAT', bucket.key, bucket.expires) end
  end
end

if turn then call('DEL', KEYS[2]) end
for from = 1, rows, AT_ONCE do
  local words, to = {}, from + AT_ONCE - 1
  for i = from, to < rows and to or rows do
    words[#words + 1] = ARGV[fields + i]
    words[#words + 1] = ARGV[afters + i] .. at
  end
  call('HSET', KEYS[1], unpack(words))
end
for i = 1, rows do
  local entries = ARGV[lines + i]
  if extends[i] then
    call('LSET', KEYS[2 + i], '-1', entries .. at)
  elseif entries ~= '' then
    local each = {}
    for entry in entries:gmatch('[^\n]+') do each[#each + 1] = entry .. at end
    call('RPUSH', KEYS[2 + i], unpack(each))
  end
end
if is_plain then return {1, 0} end

-- The stream numbers the letters: it keeps its last id even if that letter is deleted.
local last_letter
local function park(letter)
  if not last_letter then
    last_letter = 0
    local info = call('EXISTS', letters) == 1 and call('XINFO', 'STREAM', letters) or {}
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then last_letter = tonumber(info[i + 1]:match('^%d+')) end
    end
  end
  last_letter = last_letter + 1
  call('XADD', letters, ('%.0f-0'):format(last_letter), 'letter', letter .. at)
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
if attempt and failed > 0 then call('SET', attempt, failed, 'PX', remembered) end
return {1, failed}
