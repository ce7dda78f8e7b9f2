-- Removes journal entries of a group that are older than so many microseconds, a thousand of each position at a time, and
-- returns how many; the caller asks again until there are none. Entries go from the front only, and the last one stays.
--
-- KEYS  positions, the key that remembers the attempt: a client may send it again
-- ARGV  group, what the keys of journals begin with, age in microseconds

local done = redis.call('GET', KEYS[2])
if done then return tonumber(done) end

local time = redis.call('TIME')
local cutoff = time[1] * 1000000 + time[2] - ARGV[3] -- 16 digits: a Lua number holds them exactly

local fields = redis.call('HKEYS', KEYS[1])
fields[#fields + 1] = ':'
local pruned = 0
for _, field in ipairs(fields) do
  local key = ARGV[2] .. field .. ':' .. ARGV[1]
  local oldest = redis.call('LRANGE', key, 0, 1000)
  local old = 0
  while old < #oldest - 1 and tonumber(oldest[old + 1]:match('(%d+)%]$')) < cutoff do old = old + 1 end
  if old > 0 then redis.call('LTRIM', key, old, -1) end
  pruned = pruned + old
end
if pruned > 0 then redis.call('SET', KEYS[2], pruned, 'PX', 600000) end
return pruned
