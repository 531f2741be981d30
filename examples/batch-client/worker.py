"""Does the jobs that it reads, a line each, within a limit that it shares with other processes.

    python worker.py KEY CAPACITY REFILL_RATE BATCH

    REDIS_URL    redis://127.0.0.1:6379
"""

import os
import signal
import sys

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from batches import BatchedBucket

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")


def main(key: str, capacity: str, refill_rate: str, batch: str) -> None:
    # Python ends at SIGTERM without leaving its `with` blocks, and so without giving back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # redis-py sends again if a connection breaks, unless it is told not to. A batch would then be taken twice.
    client = redis.Redis.from_url(REDIS_URL, retry=Retry(NoBackoff(), 0))
    with BatchedBucket(client, key, float(capacity), float(refill_rate), int(batch)) as bucket:
        for job in sys.stdin:
            print("done:" if bucket.take() else "refused:", job.strip(), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
