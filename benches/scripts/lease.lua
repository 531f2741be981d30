-- Takes a lease, as it is usually written: a sorted set of ids, scored by the time at which each expires.
--
--   KEYS[1]  the leases
--   ARGV     limit, lease in milliseconds, Unix time in milliseconds, id
local limit, lease_ms, now_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms)
local live = redis.call('ZCARD', KEYS[1])
if live >= limit then
  return {0, 0}
end
redis.call('ZADD', KEYS[1], now_ms + lease_ms, ARGV[4])
redis.call('PEXPIRE', KEYS[1], lease_ms)
return {1, limit - live - 1}
