-- Gives a lease back and takes the real cost from a bucket, which may go into debt: once, as long as the lease is live.
--
--   KEYS  the bucket (a hash), the leases (a sorted set of ids, scored by their expiry)
--   ARGV  capacity, refill rate and cost of the bucket; Unix time in milliseconds; id
local capacity, refill_rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now_ms, id = tonumber(ARGV[4]), ARGV[5]
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
if redis.call('ZREM', KEYS[2], id) == 0 then
  return 0
end
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'last')
local elapsed_s = math.max(0, now_ms - tonumber(bucket[2] or now_ms)) / 1000
local tokens = math.min(capacity, tonumber(bucket[1] or capacity) + elapsed_s * refill_rate) - cost
redis.call('HSET', KEYS[1], 'tokens', tokens, 'last', now_ms)
redis.call('EXPIRE', KEYS[1], math.ceil((capacity - math.min(tokens, 0)) / refill_rate) + 60)
return 1
