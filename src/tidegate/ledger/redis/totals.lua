-- Adds up the positions of some groups. Returns for each group and each of its topics: the topic, the number of positions, how
-- many of them have an owner, the sum of the offsets as billions and a remainder, and the time of the latest change.
--
-- KEYS  positions of each group
--
-- A Lua number is exact only up to 2^53, but an offset may have 19 digits. So the billions and the remainders of the offsets
-- are added up separately.

local reply = {}
for i, key in ipairs(KEYS) do
  local topics, found = {}, {}
  for _, row in ipairs(redis.call('HVALS', key)) do
    local topic, offset, unowned, at = row:match('^%["([^"]*)",%d+,(%d+),%d+,(n?).*,(%d+)%]$')
    local total = topics[topic]
    if not total then
      total = {topic, 0, 0, 0, 0, ''}
      topics[topic] = total
      found[#found + 1] = total
    end
    total[2] = total[2] + 1
    if unowned == '' then total[3] = total[3] + 1 end
    total[4] = total[4] + (tonumber(offset:sub(1, -10)) or 0)
    total[5] = total[5] + tonumber(offset:sub(-9))
    if #at > #total[6] or (#at == #total[6] and at > total[6]) then total[6] = at end
  end
  reply[i] = found
end
return reply
