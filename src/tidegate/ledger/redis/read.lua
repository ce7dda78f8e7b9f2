-- Reads positions at one moment. Returns for each group its own row or 'null', and its positions as one JSON array.
--
-- KEYS  groups
-- ARGV  prefix of the positions' keys, then: nothing to read every group;
--       'all', group; or 'some', group, fields

local groups = ARGV[2] and {ARGV[3]} or redis.call('HKEYS', KEYS[1])
local reply = {}
for _, group in ipairs(groups) do
  local rows = {}
  if ARGV[2] == 'some' then
    for i = 4, #ARGV do rows[#rows + 1] = redis.call('HGET', ARGV[1] .. group, ARGV[i]) or nil end
  else
    rows = redis.call('HVALS', ARGV[1] .. group)
  end
  reply[#reply + 1] = redis.call('HGET', KEYS[1], group) or 'null'
  reply[#reply + 1] = '[' .. table.concat(rows, ',') .. ']'
end
return reply
