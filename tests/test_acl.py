"""Access control holds for each command and each of its keys, as it does for the server's own commands."""

from collections.abc import Callable, Iterator

import hiredis
import pytest

from harness.clock import TODAY_MS
from harness.command_table import PREVIEWS, WRITES
from harness.connection import RawConnection, Word
from harness.server import Server

USER = "limited"
OWN, OTHER = b"tenant:1:key", b"tenant:2:key"
BUCKET, WINDOW = ("TOKENBUCKET", "10", "1"), ("SLIDING", "10", "60")
MOST_KEYS = 5

LEASES = ("CONCURRENCY", "10", "60")
KINDS = (BUCKET, WINDOW, ("QUOTA", "10", "DAY"), LEASES)
COMMANDS = WRITES + PREVIEWS
#: Commands that a connection needs to be one.
ALWAYS = ("+auth", "+ping")


def call_on(command: str, *keys: bytes) -> tuple[Word, ...]:
    """A call that is allowed on fresh limiters; of RL.ALL with a rule for each key."""
    family = command.removeprefix("RL.").removesuffix("_RO")
    if family == "ALL":
        rules = [KINDS[position % len(KINDS)] for position in range(len(keys))]
        lease = ("ID", "x") if LEASES in rules else ()
        return (command, len(keys), *keys, *(word for rule in rules for word in rule), *lease, "NOW", TODAY_MS)
    (key,) = keys
    lease = ("ID", "x") if family == "CONCURRENCY" else ()
    return (command, key, "10", "60", *lease, "NOW", TODAY_MS)


@pytest.fixture
def user(server: Server) -> Iterator[Callable[..., RawConnection]]:
    """Connections as a user with exactly these rules: `user("~tenant:1:*", "+rl.tokenbucket")`."""
    connections: list[RawConnection] = []
    administrator = server.raw_connection()
    administrator.call("FLUSHALL")

    def connect(*rules: str) -> RawConnection:
        administrator.call("ACL", "DELUSER", USER)
        reply = administrator.call("ACL", "SETUSER", USER, "on", ">secret", *ALWAYS, *rules)
        assert reply == b"OK", reply
        connection = server.raw_connection()
        connections.append(connection)
        assert connection.call("AUTH", USER, "secret") == b"OK"
        return connection

    yield connect
    administrator.call("ACL", "DELUSER", USER)
    for connection in [administrator, *connections]:
        connection.close()


def assert_no_permission(reply: object) -> None:
    assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOPERM"), reply


def each_allowed(*commands: str) -> list[str]:
    """The rules that allow these commands by name, as every server has them."""
    return [f"+{command.lower()}" for command in commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_key_pattern_holds_for_the_command(user: Callable[..., RawConnection], raw: RawConnection, command: str) -> None:
    connection = user("~tenant:1:*", *each_allowed(*COMMANDS))
    assert connection.call(*call_on(command, OWN))[0] == 1
    assert_no_permission(connection.call(*call_on(command, OTHER)))
    assert raw.call("EXISTS", OTHER) == 0


@pytest.mark.parametrize("command", ["RL.ALL", "RL.ALL_RO"])
def test_a_key_pattern_holds_for_each_key_of_all_and_takes_from_none(
    user: Callable[..., RawConnection], raw: RawConnection, command: str
) -> None:
    connection = user("~tenant:1:*", *each_allowed(*COMMANDS))
    for count in range(1, MOST_KEYS + 1):
        own = [b"tenant:1:%d" % position for position in range(count)]
        for position in range(count):
            keys = [*own[:position], OTHER, *own[position + 1 :]]
            assert_no_permission(connection.call(*call_on(command, *keys)))
            assert raw.call("EXISTS", *keys) == 0, f"key {position} of {count}"
        assert connection.call(*call_on(command, *own))[0] == 1
        raw.call("FLUSHALL")


@pytest.mark.parametrize("wrong", ["numkeys too small", "numkeys too large", "numkeys no number", "rules too few"])
@pytest.mark.parametrize("command", ["RL.ALL", "RL.ALL_RO"])
def test_a_malformed_call_of_all_reaches_no_key_that_the_pattern_excludes(
    user: Callable[..., RawConnection], raw: RawConnection, command: str, wrong: str
) -> None:
    connection = user("~tenant:1:*", *each_allowed(*COMMANDS))
    keys = (OWN, OTHER)
    call: dict[str, tuple[Word, ...]] = {
        "numkeys too small": (command, "1", *keys, *BUCKET, *WINDOW),
        "numkeys too large": (command, "99", *keys, *BUCKET, *WINDOW),
        "numkeys no number": (command, "-1", *keys, *BUCKET, *WINDOW),
        "rules too few": (command, "2", *keys, *BUCKET, "MS"),
    }
    assert isinstance(connection.call(*call[wrong]), hiredis.ReplyError)
    assert raw.call("EXISTS", *keys) == 0


@pytest.mark.parametrize("command", WRITES)
def test_a_write_command_needs_both_to_read_and_to_write_the_key(
    user: Callable[..., RawConnection], raw: RawConnection, command: str
) -> None:
    for half in ("%R~*", "%W~*"):
        assert_no_permission(user(half, *each_allowed(command)).call(*call_on(command, OWN)))
        assert raw.call("EXISTS", OWN) == 0
    assert user("%RW~*", *each_allowed(command)).call(*call_on(command, OWN))[0] == 1


@pytest.mark.parametrize("command", PREVIEWS)
def test_a_preview_needs_only_to_read_the_key(user: Callable[..., RawConnection], command: str) -> None:
    assert user("%R~*", *each_allowed(command)).call(*call_on(command, OWN))[0] == 1
    assert_no_permission(user("%W~*", *each_allowed(command)).call(*call_on(command, OWN)))


@pytest.mark.parametrize("command", COMMANDS)
def test_allowing_the_command_alone_is_enough_and_allows_no_other(
    user: Callable[..., RawConnection], command: str
) -> None:
    connection = user("~*", *each_allowed(command))
    assert connection.call(*call_on(command, OWN))[0] == 1
    for other in COMMANDS:
        if other != command:
            assert_no_permission(connection.call(*call_on(other, OWN)))
    for words in (("GET", OWN), ("SET", OWN, "x"), ("DEL", OWN)):
        assert_no_permission(connection.call(*words))


@pytest.fixture
def has_categories(raw: RawConnection) -> bool:
    """Whether modules can name ACL categories for their commands: Redis since 7.2, and Valkey."""
    listed = category(raw, "read")
    assert b"get" in listed
    return b"rl.tokenbucket_ro" in listed


def category(raw: RawConnection, name: str) -> set[bytes]:
    """The commands of an ACL category. A server gives a module's as they were registered."""
    return {command.lower() for command in raw.call("ACL", "CAT", name)}


def is_redis_7_0(server: Server) -> bool:
    info = server.info("server")
    return "valkey_version" not in info and info["redis_version"].startswith("7.0.")


def test_a_read_only_user_runs_exactly_the_previews(
    user: Callable[..., RawConnection], has_categories: bool, raw: RawConnection
) -> None:
    allowed = ["+@read"] if has_categories else each_allowed(*PREVIEWS)
    connection = user("%R~*", *allowed)
    assert raw.call(*call_on("RL.TOKENBUCKET", OWN))[0] == 1
    before = raw.call("DUMP", OWN)
    for command in PREVIEWS:
        # Of the kinds only the bucket's finds its own state there.
        key = OWN if command in ("RL.TOKENBUCKET_RO", "RL.ALL_RO") else OTHER
        assert connection.call(*call_on(command, key))[0] == 1
    for command in WRITES:
        assert_no_permission(connection.call(*call_on(command, OWN)))
        assert_no_permission(connection.call(*call_on(command, OTHER)))
    assert raw.call("DUMP", OWN) == before
    assert raw.call("EXISTS", OTHER) == 0


def test_commands_are_in_the_categories_of_what_they_do(
    server: Server, raw: RawConnection, has_categories: bool
) -> None:
    """Where the server has them."""
    listed = {name: category(raw, name) for name in ("read", "write", "fast", "slow", "dangerous")}
    writes, previews = ({name.lower().encode() for name in names} for names in (WRITES, PREVIEWS))
    writes |= {b"rl.release"}
    expected = {"read": previews, "write": writes, "fast": writes | previews}
    # Redis 7.0 does not let a module name any.
    assert has_categories == (not is_redis_7_0(server))
    for name, commands in listed.items():
        ours = {command for command in commands if command.startswith(b"rl.")}
        assert ours == (expected.get(name, set()) if has_categories else set()), name


@pytest.mark.parametrize("command", COMMANDS)
def test_a_user_of_all_but_the_command_may_not_call_it_in_a_script(
    user: Callable[..., RawConnection], raw: RawConnection, command: str
) -> None:
    """Or in a transaction."""
    connection = user("~*", "+@all", f"-{command.lower()}")
    call = call_on(command, OWN)
    reply = connection.call("EVAL", "return redis.pcall(unpack(ARGV))", "1", OWN, *call)
    assert isinstance(reply, hiredis.ReplyError), reply
    assert connection.call("MULTI") == b"OK"
    assert_no_permission(connection.call(*call))
    assert isinstance(connection.call("EXEC"), hiredis.ReplyError)
    assert raw.call("EXISTS", OWN) == 0


def test_a_key_pattern_holds_inside_a_script(user: Callable[..., RawConnection], raw: RawConnection) -> None:
    connection = user("~tenant:1:*", "+@all")
    for command in COMMANDS:
        script = "return redis.pcall(unpack(ARGV))"
        assert connection.call("EVAL", script, "0", *call_on(command, OWN))[0] == 1
        reply = connection.call("EVAL", script, "0", *call_on(command, OTHER))
        assert isinstance(reply, hiredis.ReplyError), reply
        raw.call("DEL", OWN)
    assert raw.call("EXISTS", OTHER) == 0


def test_a_lease_is_released_only_on_a_key_of_ones_own(user: Callable[..., RawConnection], raw: RawConnection) -> None:
    connection = user("~tenant:1:*", "+rl.release")
    for key in (OWN, OTHER):
        assert raw.call(*call_on("RL.CONCURRENCY", key))[0] == 1
    assert connection.call("RL.RELEASE", OWN, "x") == 1
    assert_no_permission(connection.call("RL.RELEASE", OTHER, "x"))
    assert_no_permission(user("%R~*", "+rl.release").call("RL.RELEASE", OTHER, "x"))
    assert raw.call("ZCARD", OTHER) == 1


def test_a_refused_call_is_in_the_acl_log_with_its_key(user: Callable[..., RawConnection], raw: RawConnection) -> None:
    connection = user("~tenant:1:*", *each_allowed("RL.ALL"))
    raw.call("ACL", "LOG", "RESET")
    assert_no_permission(connection.call(*call_on("RL.ALL", OWN, OTHER)))
    (entry,) = raw.call("ACL", "LOG")
    fields = dict(zip(entry[::2], entry[1::2]))
    assert (fields[b"reason"], fields[b"object"], fields[b"username"]) == (b"key", OTHER, USER.encode())
