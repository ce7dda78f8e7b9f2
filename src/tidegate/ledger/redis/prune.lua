-- Removes journal entries of a group that are older than the given age, up to a thousand per journal, and returns how many;
-- the caller runs it until it removes none. It removes entries only from the front of a journal. The last entry stays, and if
-- that is an advance, which may still be open, so does the one before it.
--
-- KEYS  the key that marks the attempt, because the script may be sent again; positions
-- ARGV  how many milliseconds to keep that key, group, prefix of the journals' keys, age in microseconds

local done = redis.call('GET', KEYS[1])
if done then return tonumber(done) end

local time = redis.call('TIME')
local cutoff = time[1] * 1000000 + time[2] - ARGV[4] -- 16 digits: a Lua number holds them exactly

local fields = redis.call('HKEYS', KEYS[2])
fields[#fields + 1] = ':'
local pruned = 0
for _, field in ipairs(fields) do
  local key = ARGV[3] .. field .. ':' .. ARGV[2]
  local oldest = redis.call('LRANGE', key, 0, 1000)
  local last = redis.call('LINDEX', key, -1)
  local kept = last and last:match('^%[%d+,"advance"') and 2 or 1
  local most, old = math.min(1000, redis.call('LLEN', key) - kept), 0
  while old < most and tonumber(oldest[old + 1]:match('(%d+)%]$')) < cutoff do old = old + 1 end
  if old > 0 then redis.call('LTRIM', key, old, -1) end
  pruned = pruned + old
end
if pruned > 0 then redis.call('SET', KEYS[1], pruned, 'PX', ARGV[1]) end
return pruned
