"""A token bucket whose tokens are taken in batches and spent locally: one call to Redis for many decisions."""

import logging
import math
import threading
import time

import redis

MS_PER_S = 1000
NEVER = -1

log = logging.getLogger(__name__)


class BatchedBucket:
    """Takes up to `batch` tokens at a time. One for each process, shared by its threads.

    ATLEAST 1 grants what there is when the bucket holds less than a batch, so the last tokens do not go to waste. After
    a denial Redis is not asked again before the time that it named.
    """

    def __init__(self, client: redis.Redis, key: str, capacity: float, refill_rate: float, batch: int) -> None:
        self._client = client
        self._words = ("RL.TOKENBUCKET", key, capacity, refill_rate)
        self._batch = batch
        self._lock = threading.Lock()
        self._tokens = 0
        self._ask_again_s = 0.0

    def take(self) -> bool:
        """Spends one token, if there is one. An error of Redis is raised: the caller should then refuse."""
        with self._lock:
            if self._tokens == 0 and time.monotonic() >= self._ask_again_s:
                # Not repeated if the reply is lost: a batch at most is missing, and the bucket refills.
                reply = self._client.execute_command(*self._words, "COST", self._batch, "ATLEAST", 1, "MS")
                _, _, _, retry_after_ms, self._tokens = reply
                if self._tokens == 0:
                    wait_s = math.inf if retry_after_ms == NEVER else retry_after_ms / MS_PER_S
                    self._ask_again_s = time.monotonic() + wait_s
            if self._tokens == 0:
                return False
            self._tokens -= 1
            return True

    def give_back(self) -> None:
        """Gives back what is not spent. Call it at exit, and before a long pause."""
        with self._lock:
            tokens, self._tokens = self._tokens, 0
            if tokens == 0:
                return
            try:
                self._client.execute_command(*self._words, "REFUND", tokens)
            except redis.RedisError as error:
                # Not repeated either: it may have taken effect. The bucket refills without it.
                log.warning("%d tokens not given back: %r", tokens, error)

    def __enter__(self) -> "BatchedBucket":
        return self

    def __exit__(self, *error: object) -> None:
        self.give_back()
