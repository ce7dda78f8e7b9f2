-- Removes dead letters and the notes of their failed replays; returns how many letters were removed.
--
-- KEYS  the key that marks the attempt, because the script may be sent again; letters, tries
-- ARGV  how many milliseconds to keep that key, then the letters

local done = redis.call('GET', KEYS[1])
if done then return tonumber(done) end

local dropped = 0
for i = 2, #ARGV do
  local letter = ARGV[i]
  dropped = dropped + redis.call('XDEL', KEYS[2], letter .. '-0')
  redis.call('HDEL', KEYS[3], letter .. ':attempts', letter .. ':error')
end
if dropped > 0 then redis.call('SET', KEYS[1], dropped, 'PX', ARGV[1]) end
return dropped
