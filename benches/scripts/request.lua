-- Takes from a window, from a bucket and a lease, from all of them or from none. If the lease is live already, the
-- call is a repeat and only renews it.
--
--   KEYS  the window (a hash), the bucket (a hash), the leases (a sorted set of ids, scored by their expiry)
--   ARGV  limit and length in seconds of the window; capacity, refill rate and cost of the bucket; limit and length in
--         milliseconds of the leases; Unix time in milliseconds; id
local limit, window_s = tonumber(ARGV[1]), tonumber(ARGV[2])
local capacity, refill_rate, cost = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local leases, lease_ms, now_ms, id = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]

redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now_ms)
if redis.call('ZSCORE', KEYS[3], id) then
  redis.call('ZADD', KEYS[3], now_ms + lease_ms, id)
  return {1, 1}
end

local now_s = now_ms / 1000
local index = math.floor(now_s / window_s)
local window = redis.call('HMGET', KEYS[1], 'index', 'previous', 'current')
local previous, current = tonumber(window[2] or 0), tonumber(window[3] or 0)
local stored = tonumber(window[1] or index)
if stored < index then
  previous, current = stored == index - 1 and current or 0, 0
end
local estimate = previous * (1 - (now_s % window_s) / window_s) + current

local bucket = redis.call('HMGET', KEYS[2], 'tokens', 'last')
local elapsed_s = math.max(0, now_ms - tonumber(bucket[2] or now_ms)) / 1000
local tokens = math.min(capacity, tonumber(bucket[1] or capacity) + elapsed_s * refill_rate)

local live = redis.call('ZCARD', KEYS[3])
if estimate + 1 > limit or tokens < cost or live >= leases then
  return {0, 0}
end
redis.call('HSET', KEYS[1], 'index', index, 'previous', previous, 'current', current + 1)
redis.call('EXPIRE', KEYS[1], 2 * window_s + 60)
redis.call('HSET', KEYS[2], 'tokens', tokens - cost, 'last', now_ms)
redis.call('EXPIRE', KEYS[2], math.ceil(capacity / refill_rate) + 60)
redis.call('ZADD', KEYS[3], now_ms + lease_ms, id)
redis.call('PEXPIRE', KEYS[3], lease_ms)
return {1, 0}
