"""The documents are true: their examples run, their commands exist, their links lead somewhere.

Every fenced block that holds a prompt of redis-cli is an example: it is sent to a real server through
redis-cli, and what comes back has to be what stands there. The examples of a page follow one another
and start on an empty server. To leave a block out, leave out its prompts.
"""

import functools
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.command_table import pairs
from harness.connection import RawConnection
from harness.server import HOST, REPOSITORY, Server
from harness.tally import Tally

PROMPT = re.compile(r"127\.0\.0\.1:6379(\(TX\))?> (?P<command>.*)")
SHELL_PROMPT = "$ "
#: What looks like the prompt of a redis-cli or valkey-cli anywhere in a line.
ANY_PROMPT = re.compile(r"(127\.0\.0\.1:\d+|redis|valkey)(\[\d+\])?(\(TX\))?> ")
FENCE = re.compile(r"(?P<indent>\s*)(?P<fence>```+|~~~+)\s*(?P<language>\w*)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)|^\[[^\]]+\]:\s+(?P<reference>\S+)", re.MULTILINE)
INLINE_CODE = re.compile(r"`([^`]+)`")
HEADING = re.compile(r"#{1,6}\s+(?P<text>.*)")
MAKE_TARGET = re.compile(r"\bmake ((?:[A-Z_]+=\S+ )*)(?P<target>[a-z][a-z-]*)")
SCHEME = re.compile(r"[a-z][a-z+.-]*:")
CLI_TIMEOUT_S = 30
MODULE_NAME = "rl"
COMMAND_PAGES = REPOSITORY / "docs" / "commands"
#: Inline code that starts so names a file or a folder of the repository.
FOLDERS = (
    ".ci/", ".github/", "benches/", "docs/", "examples/", "fuzz/",
    "limiter/", "lua-reference/", "packaging/", "src/", "syntax/", "tests/",
)  # fmt: skip
#: What the module is loaded with for the examples of a command that is off by default.
MODULE_ARGS = {"CL.THROTTLE": ("cl-throttle", "yes")}


def pages() -> list[Path]:
    """Every document of the repository."""
    found = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("examples/**/*.md")]
    return sorted(page for page in found if "node_modules" not in page.parts and ".venv" not in page.parts)


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    #: the line of its fence, from 1
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def commands(self) -> list[str]:
        return [match["command"] for line in self.lines if (match := PROMPT.match(line))]

    @property
    def output(self) -> list[str]:
        """What stands there as the replies."""
        return [line.rstrip() for line in self.lines if not PROMPT.match(line)]

    @property
    def shell_calls(self) -> list[tuple[str, list[str]]]:
        """Each command of a shell, with what stands there as its output."""
        calls: list[tuple[str, list[str]]] = []
        for line in "\n".join(self.lines).replace("\\\n", " ").splitlines():
            if line.startswith(SHELL_PROMPT):
                calls.append((line.removeprefix(SHELL_PROMPT), []))
            elif calls and line.strip():
                calls[-1][1].append(line.rstrip())
        return calls


def split(page: Path) -> tuple[str, list[Block]]:
    """A page's text outside its fenced blocks, and the blocks."""
    prose, blocks = [], []
    fence, indent, language, start, inside = "", "", "", 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = FENCE.match(line)
        if fence and match and match["fence"].startswith(fence):
            blocks.append(Block(page, start, language, tuple(inside)))
            fence = ""
        elif fence:
            inside.append(line.removeprefix(indent))
        elif match:
            fence, indent, language = match["fence"], match["indent"], match["language"]
            start, inside = number, []
        else:
            prose.append(line)
    assert not fence, f"{name_of(page)}:{start}: the block is not closed"
    return "\n".join(prose), blocks


def examples() -> list[Block]:
    return [block for page in pages() for block in split(page)[1] if block.commands]


each_page = pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
each_example = pytest.mark.parametrize(
    "block", [pytest.param(block, id=f"{name_of(block.page)}:{block.line}") for block in examples()]
)


# The examples


def redis_cli_command(server: Server) -> list[str]:
    # --no-raw: replies as on a terminal.
    return ["redis-cli", "-h", HOST, "-p", str(server.port), "--no-raw"]


def redis_cli(server: Server, commands: list[str]) -> list[str]:
    """What redis-cli shows for the commands when one types them."""
    done = subprocess.run(
        redis_cli_command(server),
        input="".join(f"{command}\n" for command in commands),
        capture_output=True,
        text=True,
        timeout=CLI_TIMEOUT_S,
        check=True,
    )
    return [line.rstrip() for line in done.stdout.splitlines()]


def module_args(page: Path) -> tuple[str, ...]:
    commands = " ".join(command for block in split(page)[1] for command in block.commands).upper()
    return next((args for name, args in MODULE_ARGS.items() if name in commands), ())


@functools.cache
def replies_of(page: Path) -> dict[int, list[str]]:
    """What a fresh server answers to the examples of a page in their order, by the line of the block."""
    with Server(module_args=module_args(page)) as server:
        return {block.line: redis_cli(server, block.commands) for block in split(page)[1] if block.commands}


@each_example
def test_an_example_gives_the_output_that_stands_there(block: Block, tally: Tally) -> None:
    assert replies_of(block.page)[block.line] == block.output
    tally.add("documents", len(block.commands), "commands in examples answered as shown")


@each_page
def test_each_prompt_that_a_page_shows_belongs_to_an_example_that_is_run(page: Path) -> None:
    shown = [line for line in page.read_text(encoding="utf-8").splitlines() if ANY_PROMPT.search(line)]
    assert len(shown) == sum(len(block.commands) for block in split(page)[1])


def test_the_call_that_opens_the_readme_is_one_whose_reply_it_shows() -> None:
    drawn = split(REPOSITORY / "README.md")[1][0]
    client, *words = shlex.split("\n".join(drawn.lines).replace("\\\n", " "))
    assert (client, words[0]) == ("redis-cli", "RL.ALL")
    # The example fixes the time; what one pastes does not.
    shown = [re.sub(r" NOW \d+", "", command).split() for block in split(drawn.page)[1] for command in block.commands]
    assert words in shown


def test_there_are_examples_for_every_command() -> None:
    shown = {command.split()[0].upper() for block in examples() for command in block.commands}
    assert {title_of(page) for page in COMMAND_PAGES.glob("*.md")} <= shown


def test_a_shell_example_with_output_is_a_call_of_redis_cli_that_gives_it(server: Server, client) -> None:
    for page in pages():
        client.flushall()
        for block in split(page)[1]:
            for command, output in block.shell_calls:
                where = f"{name_of(page)}:{block.line}: {command}"
                words = shlex.split(command, comments=True)
                if words[:1] != ["redis-cli"]:
                    assert not output, f"{where}: has output that no test can check"
                elif output:
                    assert shell_redis_cli(server, words[1:]) == output, where


def shell_redis_cli(server: Server, words: list[str]) -> list[str]:
    """What redis-cli shows in a shell, asked of this server wherever the words say it should go."""
    while words and words[0] in ("-h", "-p"):
        words = words[2:]
    done = subprocess.run(
        [*redis_cli_command(server), *words],
        capture_output=True,
        text=True,
        timeout=CLI_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return [line.rstrip() for line in done.stdout.splitlines()]


# A figure in the prose


START_MS = 1_751_662_800_000  # a whole minute


def assert_page_says(page: str, sentence: str) -> None:
    words = " ".join((COMMAND_PAGES / page).read_text(encoding="utf-8").split())
    assert sentence in words


def test_polling_a_bucket_loses_as_many_tokens_as_its_page_says(raw: RawConnection) -> None:
    assert_page_says("rl.tokenbucket.md", "polled every 100 ms for 100 seconds, a bucket gave 91 tokens; to a caller that")
    end_ms = START_MS + 100_000
    polls = range(START_MS, end_ms + 1, 100)
    assert sum(raw.call("RL.TOKENBUCKET", "polled", 1, 1, "NOW", now_ms)[0] for now_ms in polls) == 91
    taken, now_ms = 0, START_MS
    while now_ms <= end_ms:
        allowed, _, _, retry_after_ms = raw.call("RL.TOKENBUCKET", "awaited", 1, 1, "NOW", now_ms, "MS")
        taken += allowed
        now_ms += retry_after_ms
    assert taken == 101


# The reference


def title_of(page: Path) -> str:
    return page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").strip()


def table_of(page: Path) -> dict[str, str]:
    """The first table of a command's page: the facts about it."""
    facts = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and cells[0].strip("- "):
            facts[cells[0]] = cells[1]
        elif facts and not line.startswith("|"):
            return facts
    return facts


def plain(value: object) -> object:
    """Bytes as text, arrays of names and values as they are."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def tokens_of(arguments: list) -> set[str]:
    """Every keyword in the arguments of COMMAND DOCS."""
    found = set()
    for argument in map(pairs, arguments):
        found |= {argument["token"]} if "token" in argument else set()
        found |= tokens_of(argument.get("arguments", []))
    return found


each_command_page = pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name) for page in sorted(COMMAND_PAGES.glob("*.md"))]
)


@pytest.fixture(scope="module")
def full_server() -> Iterator[Server]:
    """A server with every command that a page describes."""
    args = [word for words in MODULE_ARGS.values() for word in words]
    with Server(module_args=tuple(args)) as running:
        yield running


def answer(server: Server, *words: str) -> object:
    with server.raw_connection() as connection:
        return plain(connection.call(*words))


@each_command_page
def test_a_command_page_states_arity_flags_and_acl_as_the_server_does(
    page: Path, full_server: Server
) -> None:
    name, facts = title_of(page), table_of(page)
    assert page.name == f"{name.lower()}.md"
    (info,) = answer(full_server, "COMMAND", "INFO", name)
    assert info, f"the server does not know {name}"
    arity, flags, categories = info[1], info[2], info[6]
    assert facts["Arity"] == str(arity)
    assert set(INLINE_CODE.findall(facts["Flags"])) == set(flags)
    if categories:  # Redis 7.0 gives a module's command none.
        assert set(INLINE_CODE.findall(facts["ACL categories"])) == set(categories)


@each_command_page
def test_a_command_page_has_the_syntax_that_command_docs_describes(page: Path, full_server: Server) -> None:
    name, facts = title_of(page), table_of(page)
    _, described = answer(full_server, "COMMAND", "DOCS", name)
    docs = pairs(described)
    assert facts["Available since"] == f"redis-rl {docs['since']}"
    assert facts["Time complexity"].rstrip(".") == docs["complexity"].rstrip(".")
    syntax = "\n".join(split(page)[1][0].lines)
    assert syntax.startswith(name + " ")
    keywords = set(re.findall(r"\b[A-Z]{2,}\b", syntax.replace(name, "")))
    assert keywords == tokens_of(docs["arguments"])


@each_command_page
def test_a_command_page_opens_with_the_summary_of_command_docs(page: Path, full_server: Server) -> None:
    _, described = answer(full_server, "COMMAND", "DOCS", title_of(page))
    # The prose begins behind the table; a summary has neither links nor code.
    _, behind = page.read_text(encoding="utf-8").split("| Flags |")
    text = behind.split("\n\n")[1]
    opening = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", " ".join(text.split()))
    assert opening == pairs(described)["summary"]


def test_each_command_of_the_module_has_a_page_and_each_page_a_command(full_server: Server) -> None:
    listed = answer(full_server, "COMMAND", "LIST", "FILTERBY", "MODULE", MODULE_NAME)
    assert {name.upper() for name in listed} == {title_of(page) for page in COMMAND_PAGES.glob("*.md")}


# Links, targets, paths


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    anchors: dict[str, int] = {}
    found = set()
    for line in split(page)[0].splitlines():
        if match := HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match["text"]).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            count = anchors.get(slug, 0)
            anchors[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
    return found


def is_tracked_place(path: Path) -> bool:
    return path.resolve().is_relative_to(REPOSITORY.resolve())


@each_page
def test_each_link_leads_to_a_file_and_a_heading_of_the_repository(page: Path) -> None:
    prose = INLINE_CODE.sub("", split(page)[0])
    broken = []
    for match in LINK.finditer(prose):
        target = match["target"] or match["reference"]
        if SCHEME.match(target):
            if not target.startswith(("https://", "mailto:")):
                broken.append(f"{target}: not https")
            continue
        path, _, anchor = target.partition("#")
        aimed = (page.parent / path) if path else page
        if not aimed.exists() or not is_tracked_place(aimed):
            broken.append(f"{target}: no such file")
        elif anchor and aimed.suffix == ".md" and anchor not in anchors_of(aimed):
            broken.append(f"{target}: no such heading")
    assert not broken


def makefile_targets() -> set[str]:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))


@each_page
def test_each_make_target_that_a_page_names_exists(page: Path) -> None:
    prose, blocks = split(page)
    code = [*INLINE_CODE.findall(prose), *(line for block in blocks for line in block.lines)]
    commands = [line.removeprefix(SHELL_PROMPT) for line in code]
    named = {match["target"] for line in commands if (match := MAKE_TARGET.match(line))}
    assert named <= makefile_targets()


@each_page
def test_each_path_that_a_page_names_exists(page: Path) -> None:
    named = [word for code in INLINE_CODE.findall(split(page)[0]) for word in code.split()]
    paths = [word.rstrip(",;:.") for word in named if word.startswith(FOLDERS)]
    assert [path for path in paths if not any(REPOSITORY.glob(path.rstrip("/")))] == []
