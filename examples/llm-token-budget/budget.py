"""A budget of language-model tokens: reserve the most that a call can use, then give back the rest.

What a call costs is known only once it has ended. If it were charged then, many calls at once would all start on the
last tokens. So each call takes its estimate first (COST), and gives back the difference (REFUND).
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
MS_PER_S = 1000
NEVER = -1

log = logging.getLogger(__name__)


class BudgetExhausted(Exception):
    """The estimate is more than what is left. `retry_after_ms` is None if it is more than the budget ever holds."""

    def __init__(self, estimate: int, remaining: int, retry_after_ms: int) -> None:
        self.retry_after_ms = None if retry_after_ms == NEVER else retry_after_ms
        when = "never" if self.retry_after_ms is None else f"in {self.retry_after_ms / MS_PER_S:.1f} s"
        super().__init__(f"{estimate} tokens asked for, {remaining} left: {when}")


class Reservation:
    """The tokens that one call holds. The call keeps `used` up to date, so that it is right whenever the call ends."""

    def __init__(self, estimate: int) -> None:
        self.estimate = estimate
        self.used = 0


class TokenBudget:
    """`tokens_per_minute`, all of them at once if need be, refilled evenly."""

    def __init__(self, client: redis.Redis, key: str, tokens_per_minute: int) -> None:
        self._client = client
        self._key = key
        self._bucket = (tokens_per_minute, tokens_per_minute / 60)

    @contextmanager
    def reserve(self, estimate: int) -> Iterator[Reservation]:
        """Holds `estimate` tokens for the block. What it has not used goes back, also if it fails or is cancelled.

        `estimate` has to be an upper bound, the prompt and the longest answer that the model may give: anything beyond
        it is not charged.
        """
        reserved_at_ms = time.time_ns() // 1_000_000
        allowed, remaining, _, retry_after_ms = self._call("RL.TOKENBUCKET", "COST", estimate, "MS")
        if not allowed:
            raise BudgetExhausted(estimate, remaining, retry_after_ms)
        reservation = Reservation(estimate)
        try:
            yield reservation
        finally:
            self._give_back(estimate - reservation.used, reserved_at_ms)

    def remaining(self) -> int:
        """A look that takes nothing and writes nothing."""
        _, remaining, _, _ = self._call("RL.TOKENBUCKET_RO")
        return remaining

    def _give_back(self, tokens: int, reserved_at_ms: int) -> None:
        if tokens <= 0:
            return
        try:
            # A bucket ignores AT. A window would take the tokens from the counter of that time.
            self._call("RL.TOKENBUCKET", "REFUND", tokens, "AT", reserved_at_ms)
        except redis.RedisError as error:
            # Lost for a minute at most: the bucket refills without us. The answer matters more.
            log.warning("%d tokens not given back: %r", tokens, error)

    def _call(self, command: str, *words: object) -> list[int]:
        return self._client.execute_command(command, self._key, *self._bucket, *words)


class ModelFailed(Exception):
    """The model stopped in the middle of its answer."""


def stream(prompt: str, max_tokens: int, fails_after: int | None = None) -> Iterator[str]:
    """Stands in for the model: answers with the prompt's words, a token each, at most `max_tokens` of them."""
    for number, word in enumerate(prompt.split()[:max_tokens]):
        if number == fails_after:
            raise ModelFailed(f"the connection broke after {number} tokens")
        yield word


def ask(budget: TokenBudget, prompt: str, max_tokens: int, fails_after: int | None = None) -> str:
    """One call to the model within the budget."""
    prompt_tokens = len(prompt.split())
    with budget.reserve(prompt_tokens + max_tokens) as reservation:
        answer = []
        for token in stream(prompt, max_tokens, fails_after):
            answer.append(token)
            reservation.used = prompt_tokens + len(answer)
    return " ".join(answer)


def main() -> None:
    client = redis.Redis.from_url(REDIS_URL)
    budget = TokenBudget(client, f"tokens:example-{os.getpid()}", tokens_per_minute=600)
    prompt = "Everything flows and nothing stays"

    print(f"at first: {budget.remaining()} tokens")

    print(f"answer: {ask(budget, prompt, max_tokens=400)}")
    print(f"after 405 reserved and 10 used: {budget.remaining()}")

    for fails_after, used in ((2, 7), (0, 0)):
        try:
            ask(budget, prompt, max_tokens=400, fails_after=fails_after)
        except ModelFailed as error:
            print(f"failed: {error}")
        print(f"after 405 reserved, {used} used and a failure: {budget.remaining()}")

    with budget.reserve(400) as other_call:
        try:
            ask(budget, prompt, max_tokens=400)
        except BudgetExhausted as error:
            print(f"while another call holds 400: {error}")
        other_call.used = 400
    print(f"at the end: {budget.remaining()}")

    try:
        ask(budget, prompt, max_tokens=1_000)
    except BudgetExhausted as error:
        print(f"too much at once: {error}")


if __name__ == "__main__":
    main()
