-- Reads the coarse history of several positions between two days, and the positions at the same moment. Returns for each
-- position its row, followed by pairs of a bucket and its records.
--
-- KEYS  positions
-- ARGV  prefix of the coarse history's keys, group, first day, last day, fields of the positions

local reply = {}
for i = 5, #ARGV do
  local found = {redis.call('HGET', KEYS[1], ARGV[i])}
  for day = tonumber(ARGV[3]), tonumber(ARGV[4]) do
    local key = ARGV[1] .. ('%d:'):format(day) .. ARGV[i] .. ':' .. ARGV[2]
    for _, each in ipairs(redis.call('HGETALL', key)) do found[#found + 1] = each end
  end
  reply[#reply + 1] = found
end
return reply
