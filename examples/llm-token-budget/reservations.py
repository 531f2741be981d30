"""Every limit on a call to a language model, taken in one RL.ALL before the call and settled in another after it.

Before: requests per minute, tokens per minute, tokens per month and calls at once, from all of them or from none. What
a call costs is known only once it has ended. If it were charged then, many calls at once would all start on the last
tokens. So each takes an estimate first. After: the difference is given back (REFUND) or taken too (FORCE), and the
place among the calls at once is released.

The place is a lease under an id. The id is made here, fresh for each call, and never taken from a client: whoever can
choose it repeats a call under one live lease and gets in without paying.

The id makes both RL.ALLs safe to send again when a reply was lost. While the lease lives, the first one takes nothing a
second time; the second one, which demands the lease (XX), acts once.
"""

import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis

MS_PER_S = 1000
MINUTE_S = 60
NEVER = -1
ATTEMPTS = 2
#: How often the worker looks, as a part of the lease: several times between half a lease and its end.
BEATS_PER_LEASE = 10
#: A denial says when the next lease ends at the latest. Calls end earlier, so it is worth asking again.
RETRY_FOR_A_PLACE_MS = 1000

REQUESTS, TOKENS, MONTH, RUNNING = "requests per minute", "tokens per minute", "tokens per month", "calls at once"
SUFFIXES = {REQUESTS: "rpm", TOKENS: "tpm", MONTH: "month", RUNNING: "run"}

Rule = tuple[object, ...]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What one tenant may use."""

    requests_per_minute: int
    tokens_per_minute: int
    tokens_per_month: int
    calls_at_once: int

    def rules(self, lease_s: float) -> dict[str, Rule]:
        return {
            REQUESTS: ("SLIDING", self.requests_per_minute, MINUTE_S),
            TOKENS: ("TOKENBUCKET", self.tokens_per_minute, self.tokens_per_minute / MINUTE_S),
            MONTH: ("QUOTA", self.tokens_per_month, "MONTH"),
            RUNNING: ("CONCURRENCY", self.calls_at_once, lease_s),
        }


class Denied(Exception):
    """The limits that deny the call. `retry_after_ms` is None if it can never be allowed."""

    def __init__(self, waits_ms: Mapping[str, int]) -> None:
        self.limits = tuple(waits_ms)
        never = NEVER in waits_ms.values()
        self.retry_after_ms = None if never else max(waits_ms.values())
        super().__init__(f"denied by the limit on {', '.join(self.limits)}")


class NoDecision(Exception):
    """Redis did not answer, so nobody knows whether there is room."""


@dataclass
class Call:
    """One call to the model. Whoever makes it keeps `used` up to date, so that it is right whenever the call ends."""

    tenant: str
    estimate: int
    used: int = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    #: When the estimate was taken. A refund takes it from the window and the month of that time.
    reserved_at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    #: Until when the lease lives for certain, on this machine's monotonic clock.
    lease_until_s: float = 0.0
    #: A reply was lost. If the lease is not there, then perhaps because the call is settled already.
    in_doubt: bool = False


class Reservations:
    """Reserves, renews and settles. One for each process; any number of processes share the limits."""

    def __init__(self, client: redis.Redis, plan: Plan, lease_s: float) -> None:
        self._redis = client
        self._rules = plan.rules(lease_s)
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._running: dict[str, Call] = {}
        self._unsettled: dict[str, Call] = {}
        self._closing = threading.Event()
        self._worker = threading.Thread(target=self._work, name="leases", daemon=True)
        self._worker.start()

    @contextmanager
    def call(self, tenant: str, estimate: int) -> Iterator[Call]:
        """Holds a place and `estimate` tokens for the block, then settles what the call has used, however it ended.

        A call that used nothing did not reach the model, and gets its request back too.
        """
        call = Call(tenant, estimate)
        self._reserve(call)
        with self._lock:
            self._running[call.id] = call
        try:
            yield call
        finally:
            with self._lock:
                self._running.pop(call.id, None)
            self._settle(call)

    def close(self) -> None:
        """Ends the worker, after a last attempt to settle."""
        self._closing.set()
        self._worker.join()

    # The two calls

    def _reserve(self, call: Call) -> None:
        rules = {
            REQUESTS: self._rules[REQUESTS],
            TOKENS: (*self._rules[TOKENS], "COST", call.estimate),
            MONTH: (*self._rules[MONTH], "COST", call.estimate),
            RUNNING: self._rules[RUNNING],
        }
        call.lease_until_s = time.monotonic() + self._lease_s
        try:
            allowed, *decisions = self._send(call, rules, "MS")
        except redis.RedisError as error:
            if call.in_doubt:
                # Perhaps it was taken all the same. Then the lease is there, and settling gives everything back.
                self._settle_later(call)
            raise NoDecision(repr(error)) from error
        call.in_doubt = False
        if not allowed:
            waits_ms = {limit: retry_ms for limit, (ok, _, _, retry_ms) in zip(rules, decisions) if not ok}
            if RUNNING in waits_ms:
                waits_ms[RUNNING] = min(waits_ms[RUNNING], RETRY_FOR_A_PLACE_MS)
            raise Denied(waits_ms)

    def _settle(self, call: Call) -> bool:
        """Whether this is done with. Otherwise the worker tries again."""
        rules = self._settlement(call)
        try:
            settled, *_ = self._send(call, rules, "XX")
            if not settled and not call.in_doubt:
                # No other call settles this id, so its lease was lost: this process stood still, or Redis lost it. The
                # tokens are owed all the same. Without XX a repeat would charge twice, so this is sent once.
                log.warning("call %s lost its place before it ended", call.id)
                call.in_doubt = True
                self._redis.execute_command(*self._words(call, rules))
        except redis.RedisError as error:
            log.warning("call %s is not settled yet: %r", call.id, error)
            self._settle_later(call)
            return False
        return True

    def _settlement(self, call: Call) -> dict[str, Rule]:
        excess = call.used - call.estimate
        # The bucket ignores AT. The month needs it: one that began since then has nothing to give back.
        correction = ("FORCE", excess) if excess >= 0 else ("REFUND", -excess, "AT", call.reserved_at_ms)
        rules: dict[str, Rule] = {
            TOKENS: (*self._rules[TOKENS], *correction),
            MONTH: (*self._rules[MONTH], *correction),
            RUNNING: (*self._rules[RUNNING], "RELEASE"),
        }
        if call.used == 0:
            rules[REQUESTS] = (*self._rules[REQUESTS], "REFUND", 1, "AT", call.reserved_at_ms)
        return rules

    def _send(self, call: Call, rules: Mapping[str, Rule], *options: object) -> list[Any]:
        """Sends a call again if its reply is lost. Only for what may be repeated."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._redis.execute_command(*self._words(call, rules), *options)
            except (redis.ConnectionError, redis.TimeoutError):
                call.in_doubt = True
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _words(self, call: Call, rules: Mapping[str, Rule]) -> list[object]:
        keys = [key_of(call.tenant, limit) for limit in rules]
        return ["RL.ALL", len(keys), *keys, *(word for rule in rules.values() for word in rule), "ID", call.id]

    # The worker

    def _work(self) -> None:
        while not self._closing.wait(self._lease_s / BEATS_PER_LEASE):
            self._renew()
            self._settle_again()
        self._settle_again()

    def _renew(self) -> None:
        """Renews the leases that have reached half their length, in one round trip."""
        now_s = time.monotonic()
        with self._lock:
            due = [call for call in self._running.values() if call.lease_until_s - now_s <= self._lease_s / 2]
        if not due:
            return
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                for call in due:
                    # XX: a call that is settled in this moment must not get a new lease, which nobody would release.
                    kind, *parameters = self._rules[RUNNING]
                    words = (f"RL.{kind}", key_of(call.tenant, RUNNING), *parameters, "ID", call.id, "XX")
                    pipeline.execute_command(*words)
                replies = pipeline.execute(raise_on_error=False)
        except redis.RedisError as error:
            log.warning("%d leases not renewed yet: %r", len(due), error)
            return
        for call, reply in zip(due, replies):
            if isinstance(reply, redis.RedisError):
                log.warning("the lease of call %s not renewed yet: %r", call.id, reply)
            elif reply[0]:
                call.lease_until_s = now_s + self._lease_s
            else:
                # Unless it has just been settled, the place may be another's by now. The call itself goes on.
                with self._lock:
                    self._running.pop(call.id, None)

    def _settle_later(self, call: Call) -> None:
        if time.monotonic() < call.lease_until_s:
            with self._lock:
                self._unsettled[call.id] = call
        else:
            log.error("call %s is not settled: %d tokens charged, %d used", call.id, call.estimate, call.used)

    def _settle_again(self) -> None:
        """Settles what could not be settled, up to the first failure: renewing must not wait for an outage to end."""
        while True:
            with self._lock:
                if not self._unsettled:
                    return
                call = self._unsettled.pop(next(iter(self._unsettled)))
            if not self._settle(call):
                return


def key_of(tenant: str, limit: str) -> str:
    # Hashed, so that no secret appears in a key name. The braces are a hash tag: all limits in one cluster slot.
    tag = hashlib.sha256(tenant.encode()).hexdigest()[:32]
    return f"{{{tag}}}:{SUFFIXES[limit]}"
