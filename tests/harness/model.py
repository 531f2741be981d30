"""The commands on limiters of every kind, as a server would answer them.

    model = Model()
    model.call("RL.TOKENBUCKET", "k", "10", "0.5", "COST", "2", "NOW", "1751662800000")
    model.limiters[b"k"]        # the state: a Bucket, Window, Count or Leases of state.py
    model.written               # what the last call propagates, but for the deadlines of leases
    model.ttls_ms[b"k"]         # how long the key lives by the server's clock, None if for ever

NOW has to be given: a model has no clock.
"""

import math
from dataclasses import dataclass, replace

from .kinds import (
    COST,
    FORCE,
    NEVER,
    REFUND,
    Concurrency,
    Decision,
    Quota,
    Request,
    Rule,
    SlidingWindow,
    State,
    TokenBucket,
    seconds_of,
)
from .periods import UNITS, Period
from .state import Bucket, Count, Leases, Window


class Refused(Exception):
    """The call is an error."""


@dataclass(frozen=True)
class Asked:
    """A rule of a call with what it asks for."""

    rule: Rule
    request: Request
    is_shadow: bool = False

    @property
    def acquires(self) -> bool:
        """Whether it has a say in whether a call is a repeat."""
        return isinstance(self.rule, Concurrency) and not self.request.is_release and not self.is_shadow


@dataclass(frozen=True)
class Options:
    """What appears once in a call."""

    now_ms: int
    in_ms: bool = False
    max_wait_ms: int | None = None
    lease_id: bytes | None = None
    must_be_live: bool = False


class Model:
    """Limiters by key, and the commands on them."""

    def __init__(self) -> None:
        self.limiters: dict[bytes, Bucket | Window | Count | Leases] = {}
        #: (SET, key, state, ttl in ms), (ZADD, key, end, id), (ZREM, key, id ...), (ZREMRANGEBYSCORE, key, -inf, now)
        self.written: list[tuple] = []
        self.ttls_ms: dict[bytes, int | None] = {}
        #: whether the last call repeated an earlier one
        self.is_repeat = False
        #: the keys whose rule denied the last call, and those whose rule only tried to
        self.denied: list[bytes] = []
        self.shadow_denied: list[bytes] = []

    def call(self, command: str, *arguments: object) -> object:
        """The reply of `command`, which has to be well-formed and to say NOW."""
        words = [_text(argument) for argument in arguments]
        name, _, form = command.upper().removeprefix("RL.").partition("_")
        self.written, self.is_repeat, self.denied, self.shadow_denied = [], False, [], []
        if name == "RELEASE":
            return self._release(*map(_bytes, words))
        is_preview = form == "RO"
        if name == "ALL":
            count = int(words[0])
            keys, rest = [_bytes(word) for word in words[1 : count + 1]], words[count + 1 :]
            asked = []
            for _ in keys:
                rule, rest = read_rule(rest)
                asked.append(rule)
            options = read_options(rest)
            return self._call_all(keys, with_options(asked, options), options, is_preview)
        key, rest = _bytes(words[0]), words[1:]
        asked, rest = read_rule([name, *rest], is_alone=True)
        options = read_options(rest)
        (asked,) = with_options([asked], options)
        return self._call_one(key, asked, options, is_preview)

    def _release(self, key: bytes, *lease_ids: bytes) -> int:
        leases = self.limiters.get(key, {})
        held = [lease_id for lease_id in dict.fromkeys(lease_ids) if lease_id in leases]
        self._keep(key, {lease_id: end_ms for lease_id, end_ms in leases.items() if lease_id not in held} or None)
        if held:
            self.written = [("ZREM", key, *lease_ids)]
        return len(held)

    def _call_one(self, key: bytes, asked: Asked, options: Options, is_preview: bool) -> list:
        decision = asked.rule.decide(self.limiters.get(key), asked.request, options.now_ms)
        reply = self._preview(key, asked, decision, options) if is_preview else self._commit(key, asked, decision, options)
        if not decision.allowed:
            self.denied = [key]
        return reply + [decision.granted] * (asked.request.at_least is not None)

    def _call_all(self, keys: list[bytes], asked: list[Asked], options: Options, is_preview: bool) -> list:
        pairs = list(zip(keys, asked))
        decisions = [one.rule.decide(self.limiters.get(key), one.request, options.now_ms) for key, one in pairs]
        if self._repeats(pairs, options):
            return [1, *(self._repeat(key, one, options, is_preview) for key, one in pairs)]
        triples = list(zip(keys, asked, decisions))
        self.denied = [key for key, one, decision in triples if not decision.allowed and not one.is_shadow]
        self.shadow_denied = [key for key, one, decision in triples if not decision.allowed and one.is_shadow]
        replies = []
        for key, one, decision in triples:
            takes = not is_preview and not self.denied and (decision.allowed or not one.is_shadow)
            replies.append((self._commit if takes else self._preview)(key, one, decision, options))
        return [int(not self.denied), *replies]

    def _repeats(self, pairs: list[tuple[bytes, Asked]], options: Options) -> bool:
        live = [
            options.lease_id in one.rule.live(self.limiters.get(key), options.now_ms) for key, one in pairs if one.acquires
        ]
        return bool(live) and all(live)

    def _repeat(self, key: bytes, asked: Asked, options: Options, is_preview: bool) -> list:
        """Nothing is taken; a lease that is live is renewed."""
        self.is_repeat = True
        state, now_ms = self.limiters.get(key), options.now_ms
        if isinstance(asked.rule, Concurrency) and not asked.request.is_release and not is_preview:
            if options.lease_id in asked.rule.live(state, now_ms):
                return self._commit(key, asked, asked.rule.decide(state, asked.request, now_ms), options)
        wait_ms = 0
        if isinstance(asked.rule, TokenBucket) and asked.request.max_wait_ms is not None:
            until_ms = asked.rule.until(state, now_ms, 0.0)
            wait_ms = NEVER if until_ms is None else until_ms
        unasked = Decision(True, state, asked.rule.remaining(state, now_ms), wait_ms=wait_ms)
        return self._preview(key, asked, unasked, options)

    def _commit(self, key: bytes, asked: Asked, decision: Decision, options: Options) -> list:
        """Keeps what the call leaves behind, and the reply of it."""
        self._keep(key, decision.state)
        # What is kept in memory alone moves the deadline there too, and the end of a lease does not.
        names = {name for name, *_ in decision.written}
        if names & {"SET", "ZADD"} or isinstance(decision.state, Bucket | Window):
            self.ttls_ms[key] = asked.rule.ttl_ms(decision.state, options.now_ms)
        for name, *rest in decision.written:
            self.written.append((name, key, *rest, self.ttls_ms[key]) if name == "SET" else (name, key, *rest))
        return _reply(asked, decision, decision.state, decision.remaining, options)

    def _preview(self, key: bytes, asked: Asked, decision: Decision, options: Options) -> list:
        """The reply of a decision that is not committed."""
        state = self.limiters.get(key)
        return _reply(asked, decision, state, asked.rule.remaining(state, options.now_ms), options)

    def _keep(self, key: bytes, state: State) -> None:
        if state is None:
            self.limiters.pop(key, None)
            self.ttls_ms.pop(key, None)
        else:
            self.limiters[key] = state


def _reply(asked: Asked, decision: Decision, shown: State, remaining: int, options: Options) -> list:
    rule, now_ms = asked.rule, options.now_ms
    reset = rule.reset_after_ms(shown, now_ms) if options.in_ms else rule.reset_at(shown, now_ms)
    if decision.allowed:
        retry = decision.wait_ms if options.in_ms else seconds_of(decision.wait_ms)
    else:
        retry = (rule.retry_after_ms if options.in_ms else rule.retry_after)(shown, asked.request, now_ms)
    return [int(decision.allowed), remaining, reset, retry]


def ms_of(seconds: str) -> int:
    """Seconds of an argument as whole milliseconds."""
    return math.floor(float(seconds) * 1000 + 0.5)


def read_period(words: list[str]) -> tuple[Period, list[str]]:
    word, rest = words[0].upper(), words[1:]
    if word == "UNTIL":
        return Period(until_ms=int(rest[0])), rest[1:]
    if word in UNITS:
        return Period(unit=word), rest
    return Period(length_ms=ms_of(word)), rest


def read_rule(words: list[str], is_alone: bool = False) -> tuple[Asked, list[str]]:
    """The rule that comes first, and what follows it. In a command with one key (`is_alone`) what belongs to the
    rule may appear among its options."""
    name, rest = words[0].upper(), words[2:]
    period = None
    if name == "QUOTA":
        period, rest = read_period(rest)
    elif name == "CONCURRENCY":
        rule = Concurrency(int(words[1]), ms_of(words[2]))
        rest = rest[1:]
    else:
        rule = {"TOKENBUCKET": TokenBucket, "SLIDING": SlidingWindow}[name](float(words[1]), float(words[2]))
        rest = rest[1:]
    request, is_shadow, options = Request(), False, []
    while rest:
        keyword = rest[0].upper()
        if keyword in (COST, FORCE, REFUND) and name != "CONCURRENCY":
            request, rest = replace(request, how=keyword, amount=float(rest[1])), rest[2:]
        elif keyword == "AT":
            request, rest = replace(request, at_ms=int(rest[1])), rest[2:]
        elif keyword == "ATLEAST":
            request, rest = replace(request, at_least=int(rest[1])), rest[2:]
        elif keyword == "ANCHOR":
            period, rest = replace(period, anchor_ms=int(rest[1])), rest[2:]
        elif keyword == "RELEASE":
            request, rest = replace(request, is_release=True), rest[1:]
        elif keyword == "SHADOW":
            is_shadow, rest = True, rest[1:]
        elif not is_alone:
            break
        else:
            taken = 1 if keyword in ("MS", "XX") else 2
            options, rest = options + rest[:taken], rest[taken:]
    if name == "QUOTA":
        rule = Quota(float(words[1]), period)
    return Asked(rule, request, is_shadow), options + rest


def read_options(words: list[str]) -> Options:
    options = Options(now_ms=-1)
    while words:
        keyword = words[0].upper()
        if keyword == "NOW":
            options, words = replace(options, now_ms=int(words[1])), words[2:]
        elif keyword == "MAXWAIT":
            options, words = replace(options, max_wait_ms=ms_of(words[1])), words[2:]
        elif keyword == "ID":
            options, words = replace(options, lease_id=_bytes(words[1])), words[2:]
        elif keyword == "XX":
            options, words = replace(options, must_be_live=True), words[1:]
        else:
            assert keyword == "MS", words
            options, words = replace(options, in_ms=True), words[1:]
    assert options.now_ms >= 0, "a model has no clock: say NOW"
    return options


def with_options(asked: list[Asked], options: Options) -> list[Asked]:
    """The rules with what the options say to each of them."""
    has_leases = any(isinstance(one.rule, Concurrency) for one in asked)
    if has_leases != (options.lease_id is not None) or (options.must_be_live and not has_leases):
        raise Refused("ID and CONCURRENCY go together")
    result = []
    for one in asked:
        request = one.request
        if isinstance(one.rule, Quota) and one.rule.period.until_ms is not None:
            if one.rule.period.until_ms <= options.now_ms:
                raise Refused("UNTIL has passed")
        if isinstance(one.rule, TokenBucket) and request.how == COST:
            request = replace(request, max_wait_ms=options.max_wait_ms)
        if isinstance(one.rule, Concurrency):
            request = replace(request, lease_id=options.lease_id, must_be_live=options.must_be_live)
        result.append(replace(one, request=request))
    return result


def _bytes(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")


def _text(word: object) -> str:
    return word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else str(word)
