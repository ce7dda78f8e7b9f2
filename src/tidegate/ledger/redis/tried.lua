-- Notes that a replay of a dead letter failed, if the letter is there, and returns whether it is.
--
-- KEYS  letters, tries
-- ARGV  the letter, its new error

local letter_id = ARGV[1] .. '-0'
if #redis.call('XRANGE', KEYS[1], letter_id, letter_id) == 0 then return 0 end
redis.call('HINCRBY', KEYS[2], ARGV[1] .. ':attempts', 1)
redis.call('HSET', KEYS[2], ARGV[1] .. ':error', ARGV[2])
return 1
