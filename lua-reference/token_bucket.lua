-- Token bucket: the definition that RL.TOKENBUCKET must agree with, reply for reply and bit for bit.
--
-- This script is the oracle of the parity tests, and the algorithm in a form that can be read in a
-- minute. It is not what to deploy: RL.TOKENBUCKET answers the same from the server's own clock, in
-- one key of 20 bytes, at a fraction of the cost.
--
--   EVAL <this file> 1 key capacity refill_rate now_ms cost
--   redis-cli --eval token_bucket.lua key , capacity refill_rate now_ms cost
--
--   KEYS[1]  a hash with the fields `tokens` and `last_refill_ms`
--   ARGV     capacity     tokens the bucket holds
--            refill_rate  tokens added per second; 0 never refills
--            now_ms       Unix time in milliseconds
--            cost         tokens that this call takes
--
--   Reply    1) allowed      1 or 0
--            2) remaining    whole tokens left
--            3) reset_at     Unix seconds at which the bucket is full; 0 if it never refills
--            4) retry_after  seconds until `cost` tokens are there; 0 if allowed or if it never refills
--
-- Every number is an IEEE double. The order of the operations is part of the definition: another
-- order rounds differently.

local capacity, refill_rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local now_ms, cost = tonumber(ARGV[3]), tonumber(ARGV[4])

local LATEST_TIME = 9007199254740991 -- 2^53 - 1: where reported times saturate
local LONGEST_TTL_S = 36500 * 86400

-- Seventeen digits are enough for any double to be read back as it was.
local function exact(number)
  return string.format('%.17g', number)
end

-- Refill for the time since the last call; a clock that went back refills nothing.
local stored = redis.call('HMGET', KEYS[1], 'tokens', 'last_refill_ms')
local tokens, last_refill_ms
if not stored[1] then
  tokens = capacity
  last_refill_ms = now_ms
else
  local elapsed_ms = math.max(0, now_ms - tonumber(stored[2]))
  tokens = math.min(capacity, tonumber(stored[1]) + (elapsed_ms / 1000) * refill_rate)
  last_refill_ms = now_ms
end

-- Decide, and take the cost only if it is allowed.
local allowed, retry_after = 0, 0
if tokens >= cost then
  allowed = 1
  tokens = tokens - cost
elseif refill_rate > 0 then
  retry_after = math.ceil((cost - tokens) / refill_rate)
end

local remaining = math.floor(tokens)
local reset_at = 0
if refill_rate > 0 then
  reset_at = math.ceil(now_ms / 1000 + (capacity - tokens) / refill_rate)
end

-- A denial is stored too: refilling in two steps rounds differently from refilling in one.
redis.call('HSET', KEYS[1], 'tokens', exact(tokens), 'last_refill_ms', exact(last_refill_ms))
if refill_rate > 0 then
  local ttl_s = math.min(math.ceil(capacity / refill_rate) + 60, LONGEST_TTL_S)
  redis.call('EXPIRE', KEYS[1], exact(ttl_s))
else
  -- An allotment that never comes back must not be forgotten.
  redis.call('PERSIST', KEYS[1])
end

return {
  allowed,
  remaining,
  math.min(reset_at, LATEST_TIME),
  math.min(retry_after, LATEST_TIME),
}
