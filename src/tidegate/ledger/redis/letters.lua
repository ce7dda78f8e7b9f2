-- Reads the beginnings of dead letters, oldest first, so that no reply is large however large the letters are.
--
-- KEYS  letters, tries
-- ARGV  first id, most letters, bytes of the base64 of a key or a value, bytes of the JSON of a text or of the headers
--
-- A letter is a JSON array: topic, partition, offset, key, value, headers, timestamp, attempts, error, time. It is not decoded
-- here, because Lua's numbers cannot hold every offset. Keys and values are base64. Returns for each letter: id, topic,
-- partition, offset, timestamp, attempts, time, error, the beginning of the key's base64 and the key's size, the same of the
-- value, headers or '', their length, failed replays, the last error of one. The size of a missing key or value is -1.

local payload, words = tonumber(ARGV[3]), tonumber(ARGV[4])

local function string_end(text, quote)
  while true do
    quote = string.find(text, '"', quote + 1, true)
    local before = quote - 1
    while string.byte(text, before) == 92 do before = before - 1 end -- backslashes: an odd number escapes the quote
    if (quote - before) % 2 == 1 then return quote end
  end
end

local function array_end(text, at)
  local depth = 0
  while true do
    at = string.find(text, '["%[%]]', at)
    local sign = string.sub(text, at, at)
    if sign == '"' then at = string_end(text, at)
    elseif sign == '[' then depth = depth + 1
    else
      depth = depth - 1
      if depth == 0 then return at end
    end
    at = at + 1
  end
end

local function items(text)
  local found, at = {}, 2
  while #found < 10 do
    at = string.find(text, '[^%s,]', at)
    local sign, last = string.sub(text, at, at)
    if sign == '"' then last = string_end(text, at)
    elseif sign == '[' then last = array_end(text, at)
    else last = string.find(text, '[%s,%]]', at) - 1 end
    found[#found + 1] = {at, last}
    at = last + 1
  end
  return found
end

local reply, first = {}, ARGV[1]
while #reply < tonumber(ARGV[2]) do
  local entry = redis.call('XRANGE', KEYS[1], first, '+', 'COUNT', 1)[1]
  if not entry then break end
  local id, text = entry[1], entry[2][2]
  local item = items(text)
  local function cut(number, most)
    local from, to = item[number][1], item[number][2]
    return string.sub(text, from, math.min(to, from + most - 1))
  end
  local function bytes(number)
    local from, to = item[number][1] + 1, item[number][2] - 1
    if string.byte(text, from - 1) ~= 34 then return '', -1 end -- null
    local padding = #string.match(string.sub(text, math.max(from, to - 1), to), '=*$')
    return string.sub(text, from, math.min(to, from + payload - 1)), (to - from + 1) / 4 * 3 - padding
  end
  local key, key_size = bytes(4)
  local value, value_size = bytes(5)
  local headers_size = item[6][2] - item[6][1] + 1
  local number = string.match(id, '^%d+')
  local tried = redis.call('HGET', KEYS[2], number .. ':error')
  reply[#reply + 1] = {
    number, cut(1, words), cut(2, words), cut(3, words), cut(7, words), cut(8, words), cut(10, words),
    cut(9, words), key, key_size, value, value_size, headers_size <= words and cut(6, words) or '', headers_size,
    redis.call('HGET', KEYS[2], number .. ':attempts') or '', tried and string.sub(tried, 1, words) or '',
  }
  first = '(' .. id
end
return reply
