-- A page of each of several journals, oldest entry first: where it begins, and its entries.
--
-- KEYS  journals
-- ARGV  length of a page; then for each journal: where its page is expected to begin, and the entry before that or ''

local reply = {}
for i, key in ipairs(KEYS) do
  local start, before = tonumber(ARGV[2 * i]), ARGV[2 * i + 1]
  if start > 0 and redis.call('LINDEX', key, start - 1) ~= before then -- pruned since the last page
    start = (redis.call('LPOS', key, before) or -1) + 1
  end
  reply[i] = {start, redis.call('LRANGE', key, start, start + ARGV[1] - 1)}
end
return reply
