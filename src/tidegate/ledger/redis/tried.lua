-- Notes that a replay of a dead letter failed, if the letter is there, and returns whether it is.
--
-- KEYS  letters, tries, the key that remembers the attempt: a client may send it again
-- ARGV  the letter, its new error

if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
local letter_id = ARGV[1] .. '-0'
if #redis.call('XRANGE', KEYS[1], letter_id, letter_id) == 0 then return 0 end
redis.call('SET', KEYS[3], 1, 'PX', 600000)
redis.call('HINCRBY', KEYS[2], ARGV[1] .. ':attempts', 1)
redis.call('HSET', KEYS[2], ARGV[1] .. ':error', ARGV[2])
return 1
