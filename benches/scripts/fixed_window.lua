-- So many requests per period, as it is usually written: a counter that expires.
--
--   KEYS[1]  the counter
--   ARGV     limit, period in seconds, cost
local limit, cost = tonumber(ARGV[1]), tonumber(ARGV[3])
local count = tonumber(redis.call('GET', KEYS[1]) or 0)
local allowed = count + cost <= limit
if allowed then
  count = redis.call('INCRBY', KEYS[1], cost)
  if count == cost then
    redis.call('EXPIRE', KEYS[1], ARGV[2])
  end
end
return {allowed and 1 or 0, limit - count, redis.call('PTTL', KEYS[1])}
