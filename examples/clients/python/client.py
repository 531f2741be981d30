"""redis-rl from Python, with redis-py: one call, a pipelined batch, a preview, a refund, two limits at once."""

import os
from typing import NamedTuple

import redis

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")

CAPACITY = 5
REFILL_RATE = 0.1  # one token in ten seconds
LIMIT, WINDOW_S = 100, 60


class Decision(NamedTuple):
    """The four integers. With MS the two times are milliseconds from now."""

    allowed: int
    remaining: int
    reset: int
    retry_after: int


client = redis.Redis.from_url(REDIS_URL)
# The hash tag puts all of a tenant's limiters into one cluster slot, which RL.ALL needs.
tenant = f"{{example-{os.getpid()}}}"
burst, minute = f"{tenant}:burst", f"{tenant}:minute"

one = Decision(*client.execute_command("RL.TOKENBUCKET", burst, CAPACITY, REFILL_RATE))
print(f"one call: allowed {one.allowed}, remaining {one.remaining}, full at {one.reset}, retry after {one.retry_after} s")

# One round trip for five calls. No MULTI, since each of them is atomic by itself.
with client.pipeline(transaction=False) as pipeline:
    for _ in range(5):
        pipeline.execute_command("RL.TOKENBUCKET", burst, CAPACITY, REFILL_RATE)
    batch = [Decision(*reply) for reply in pipeline.execute()]
print("batch of five:", *("allowed" if decision.allowed else "denied" for decision in batch))

preview = Decision(*client.execute_command("RL.TOKENBUCKET_RO", burst, CAPACITY, REFILL_RATE, "MS"))
print(f"preview: allowed {preview.allowed}, retry after {preview.retry_after} ms")

refund = Decision(*client.execute_command("RL.TOKENBUCKET", burst, CAPACITY, REFILL_RATE, "REFUND", 2))
print(f"refund of two: remaining {refund.remaining}")

for cost in (1, 3):
    allowed, *rules = client.execute_command(
        "RL.ALL", 2, burst, minute,
        "TOKENBUCKET", CAPACITY, REFILL_RATE, "COST", cost,
        "SLIDING", LIMIT, WINDOW_S,
    )  # fmt: skip
    of_burst, of_minute = (Decision(*rule) for rule in rules)
    print(f"both limits, cost {cost}: allowed {allowed}, remaining {of_burst.remaining} and {of_minute.remaining}")
