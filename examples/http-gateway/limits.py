"""The limits of one API key, decided together by RL.ALL, and the HTTP headers that report them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

MS_PER_S = 1000
NEVER = -1


def whole_seconds(ms: int) -> int:
    """Rounded up: a client that comes back a moment early is denied again."""
    return -(-ms // MS_PER_S)


@dataclass(frozen=True)
class Policy:
    """A limit by the name that the headers give it: `quota` requests in `window_s` seconds."""

    name: str
    quota: int
    window_s: int

    @property
    def rule(self) -> tuple[object, ...]:
        raise NotImplementedError

    def __str__(self) -> str:
        return f'"{self.name}";q={self.quota};w={self.window_s}'


class TokenBucket(Policy):
    """The whole quota at once, refilled evenly."""

    @property
    def rule(self) -> tuple[object, ...]:
        return "TOKENBUCKET", self.quota, self.quota / self.window_s


class SlidingWindow(Policy):
    """About the quota in the last `window_s` seconds: an estimate, see docs/commands/rl.sliding.md."""

    @property
    def rule(self) -> tuple[object, ...]:
        return "SLIDING", self.quota, self.window_s


@dataclass(frozen=True)
class Limit:
    """Where a request stands with one policy."""

    policy: Policy
    allowed: bool
    remaining: int
    reset_after_ms: int
    retry_after_ms: int

    def __str__(self) -> str:
        """An item of the RateLimit header. `t`: for how long no more than `r` is certain; left out if for ever."""
        wait_ms = self.reset_after_ms if self.allowed else self.retry_after_ms
        wait = "" if wait_ms == NEVER else f";t={whole_seconds(wait_ms)}"
        return f'"{self.policy.name}";r={self.remaining}{wait}'


@dataclass(frozen=True)
class Decision:
    allowed: bool
    limits: Sequence[Limit]

    @property
    def denying(self) -> list[Limit]:
        return [limit for limit in self.limits if not limit.allowed]

    @property
    def never(self) -> bool:
        """Waiting is no use: a quota of 0."""
        return any(limit.retry_after_ms == NEVER for limit in self.denying)

    def headers(self) -> dict[str, str]:
        """RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers, and Retry-After."""
        headers = {"RateLimit-Policy": ", ".join(str(limit.policy) for limit in self.limits)}
        if self.allowed:
            headers["RateLimit"] = ", ".join(map(str, self.limits))
        else:
            # Only those that deny: Retry-After should not point before the end of a window that is named.
            headers["RateLimit"] = ", ".join(map(str, self.denying))
            if not self.never:
                headers["Retry-After"] = str(whole_seconds(max(limit.retry_after_ms for limit in self.denying)))
        return headers


class RateLimiter:
    def __init__(self, redis: Redis, policies: Sequence[Policy]) -> None:
        self._redis = redis
        self._policies = policies
        self._rules = [word for policy in policies for word in policy.rule]

    async def take(self, api_key: str) -> Decision:
        """Takes one request from every limit, or from none."""
        # Hashed, so that no secret appears in a key name. The braces are a hash tag: all limits in one cluster slot.
        tag = hashlib.sha256(api_key.encode()).hexdigest()[:32]
        keys = [f"{{{tag}}}:{policy.name}" for policy in self._policies]
        allowed, *replies = await self._redis.execute_command("RL.ALL", len(keys), *keys, *self._rules, "MS")
        limits = [
            Limit(policy, allowed == 1, remaining, reset_after_ms, retry_after_ms)
            for policy, (allowed, remaining, reset_after_ms, retry_after_ms) in zip(self._policies, replies)
        ]
        return Decision(allowed == 1, limits)
