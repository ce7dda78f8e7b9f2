-- Notes that a replay of a dead letter failed, if the letter exists; returns 1 if it does, otherwise 0.
--
-- KEYS  the key that marks the attempt, because the script may be sent again; letters, tries
-- ARGV  how many milliseconds to keep that key, the letter, its new error

if redis.call('EXISTS', KEYS[1]) == 1 then return 1 end
local letter_id = ARGV[2] .. '-0'
if #redis.call('XRANGE', KEYS[2], letter_id, letter_id) == 0 then return 0 end
redis.call('SET', KEYS[1], 1, 'PX', ARGV[1])
redis.call('HINCRBY', KEYS[3], ARGV[2] .. ':attempts', 1)
redis.call('HSET', KEYS[3], ARGV[2] .. ':error', ARGV[3])
return 1
