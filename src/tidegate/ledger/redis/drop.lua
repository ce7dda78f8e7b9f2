-- Removes dead letters, with what is known of their replays, and returns how many there were.
--
-- KEYS  letters, tries, the key that remembers the attempt: a client may send it again
-- ARGV  the letters

local done = redis.call('GET', KEYS[3])
if done then return tonumber(done) end

local dropped = 0
for _, letter in ipairs(ARGV) do
  dropped = dropped + redis.call('XDEL', KEYS[1], letter .. '-0')
  redis.call('HDEL', KEYS[2], letter .. ':attempts', letter .. ':error')
end
if dropped > 0 then redis.call('SET', KEYS[3], dropped, 'PX', 600000) end
return dropped
