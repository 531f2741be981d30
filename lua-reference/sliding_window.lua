-- Sliding window: the definition that RL.SLIDING must agree with, reply for reply and bit for bit.
--
-- Two counters, one for the current window of fixed length and one for the window before it, which
-- counts for as much as still lies within the last `window` seconds.
--
-- This script is the oracle of the parity tests, and the algorithm in a form that can be read in a
-- minute. It is not what to deploy: RL.SLIDING answers the same from the server's own clock, in one
-- key of 36 bytes instead of three, at a fraction of the cost.
--
--   EVAL <this file> 3 curr prev index limit window now cost
--   redis-cli --eval sliding_window.lua curr prev index , limit window now cost
--
--   KEYS[1]  what the current window counts
--   KEYS[2]  what the window before it counts
--   KEYS[3]  "<index of the window that curr counts> <window>": the length that the two counters are for
--   ARGV     limit   what the estimate of the last `window` seconds may reach
--            window  seconds, fractions allowed
--            now     Unix time in seconds, fractions allowed
--            cost    requests that this call stands for
--
--   Reply    1) allowed      1 or 0
--            2) remaining    whole requests left
--            3) reset_at     Unix seconds at which the current window ends
--            4) retry_after  seconds until the current window ends; 0 if allowed
--
-- Every number is an IEEE double. The order of the operations is part of the definition: another
-- order rounds differently. `reset_at` is not a whole number if `window` is not: it is rounded down
-- by the server as it turns the reply of a script into integers. RL.SLIDING rounds it down itself.

local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local now, cost = tonumber(ARGV[3]), tonumber(ARGV[4])

local LATEST_TIME = 9007199254740991 -- 2^53 - 1: where reported times saturate

-- Seventeen digits are enough for any double to be read back as it was.
local function exact(number)
  return string.format('%.17g', number)
end

-- The counters, rolled over to the window of `now`. A clock that went back leaves them unchanged.
local function rolled_over(prev, curr, stored_index, length)
  local index = math.floor(now / length)
  if stored_index < index then
    return (stored_index == index - 1) and curr or 0, 0, index
  end
  return prev, curr, stored_index
end

-- How far `now` lies in its window of `length` seconds.
local function elapsed_of(length)
  return now - math.floor(now / length) * length
end

-- What the last `length` seconds count, by estimate.
local function estimate_of(prev, curr, length)
  local weight = 1 - elapsed_of(length) / length
  return prev * weight + curr
end

local index = math.floor(now / window)
local window_start = index * window
local elapsed = elapsed_of(window)
local curr, prev, stored_index = 0, 0, index
local stored = redis.call('GET', KEYS[3])
if stored then
  local index_word, window_word = string.match(stored, '^(%S+) (%S+)$')
  local stored_window = tonumber(window_word)
  curr = tonumber(redis.call('GET', KEYS[1]))
  prev = tonumber(redis.call('GET', KEYS[2]))
  prev, curr, stored_index = rolled_over(prev, curr, tonumber(index_word), stored_window)
  if stored_window ~= window then
    -- Another length carries the estimate over as if it had been spread evenly. Rounding can make the
    -- estimate or the time elapsed slightly negative.
    local carried = estimate_of(prev, curr, stored_window)
    prev = math.max(0, carried)
    curr = math.max(0, carried * (elapsed / window))
    stored_index = index
  end
end

local estimate = estimate_of(prev, curr, window)

-- Decide, and count the cost only if it is allowed.
local allowed, remaining, retry_after = 0, 0, 0
if estimate + cost > limit then
  remaining = math.max(0, math.floor(limit - estimate))
  retry_after = math.ceil(window - elapsed)
else
  allowed = 1
  curr = curr + cost
  remaining = math.max(0, math.floor(limit - (estimate + cost)))
end
local reset_at = window_start + window

-- A denial keeps the roll-over that it found, and lives as long as an allowed call would.
local ttl_s = exact(math.ceil(2 * window) + 60)
redis.call('SET', KEYS[1], exact(curr), 'EX', ttl_s)
redis.call('SET', KEYS[2], exact(prev), 'EX', ttl_s)
redis.call('SET', KEYS[3], exact(stored_index) .. ' ' .. exact(window), 'EX', ttl_s)

return {
  allowed,
  remaining,
  math.min(reset_at, LATEST_TIME),
  math.min(retry_after, LATEST_TIME),
}
