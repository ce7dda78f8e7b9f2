-- Reads a page of each of several journals, oldest entry first, and the position at the same moment. Returns for each journal
-- the index at which the page begins, its entries, 1 if they are the last ones or else 0, and the position.
--
-- KEYS  positions, journals
-- ARGV  length of a page; then for each journal: its field, the index at which its page should begin, and the seq of the
--       entry before that
--
-- The last entry may still be extended. All others do not change until they are pruned.

local function number(entry) return entry and tonumber(entry:match('^%[(%d+)')) end

local reply = {}
for i = 2, #KEYS do
  local key, arg = KEYS[i], 3 * i - 4
  local start, before = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  if start > 0 and number(redis.call('LINDEX', key, start - 1)) ~= before then -- pruned since the last page
    start = math.max(0, before + 1 - (number(redis.call('LINDEX', key, 0)) or before + 1))
  end
  local entries = redis.call('LRANGE', key, start, start + ARGV[1] - 1)
  local is_last = start + #entries >= redis.call('LLEN', key)
  reply[i - 1] = {start, entries, is_last and 1 or 0, redis.call('HGET', KEYS[1], ARGV[arg])}
end
return reply
