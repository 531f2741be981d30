#!/usr/bin/env python3
"""Run the core tests on each server that tests/servers/fetch.py found.

    python tests/servers/matrix.py [pytest options]

Core are all tests that ask a server something, but for the few of NOT_CORE,
which would only say the same again on each.  So a new file of tests is core
unless somebody says why not.  A server older than Redis 7.0 gets the one test
that it refuses the module.

For each server of target/servers/servers.json (and for the one in the
environment variable REDIS_SERVER, if it is another) pytest runs with
REDIS_SERVER set to it, and a line tells its version and how many tests passed,
failed and were skipped.  A table and the sums follow.  A server that cannot be
had counts as one skip.  The exit status is 1 if a test failed or a server has
none that passed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = REPOSITORY / "tests"
SERVERS = REPOSITORY / "target" / "servers" / "servers.json"
REPORTS = REPOSITORY / "target" / "matrix"

NOT_CORE = {
    "test_documents.py": "holds the pages against one server; what they show is the same on each",
    "test_examples.py": "installs and runs the programs of examples/, clients of any one server",
    "test_model.py": "asks no server anything",
    "test_parity.py": "arithmetic, hundreds of thousands of calls: the same library on each server",
}

REFUSED_BY_OLD = (
    "test_loading.py::"
    "test_a_server_that_is_too_old_refuses_the_module"
)
OLDEST_THAT_LOADS = ("Redis", 7)


@dataclass
class Row:
    """What came of one server."""

    name: str
    version: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""

    def counts(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def version_of(server):
    """As fetch.py tells it: "Redis 7.0.15"."""
    output = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\w+) server v=(\S+)", output)
    return f"{match[1]} {match[2]}" if match else output.strip()


def servers():
    """The entries of servers.json and REDIS_SERVER, each program once."""
    entries = json.loads(SERVERS.read_text()) if SERVERS.is_file() else []
    given = os.environ.get("REDIS_SERVER")
    if given and (path := shutil.which(given)):
        entries.append({"name": "given", "version": version_of(path), "server": path, "skipped": None})
    elif given:
        entries.append({"name": "given", "version": None, "server": None, "skipped": f"no program {given}"})
    seen = set()
    for entry in entries:
        program = entry["server"] and str(Path(entry["server"]).resolve())
        if program is None or program not in seen:
            seen.add(program)
            yield entry


def is_too_old(version):
    product, number = version.split()
    return (product, int(number.split(".")[0])) < OLDEST_THAT_LOADS


def selection(version):
    """The arguments that tell pytest which tests to run on that version."""
    if is_too_old(version):
        return [str(TESTS / REFUSED_BY_OLD)]
    return [
        str(TESTS),
        *(f"--ignore={TESTS / name}" for name in NOT_CORE),
        # It has its own server.
        f"--deselect=tests/{REFUSED_BY_OLD}",
        f"--deselect={REFUSED_BY_OLD}",
    ]


def test(entry, options):
    """Run the tests on one server."""
    row = Row(entry["name"], entry["version"] or "not found", note=entry["skipped"] or "")
    if entry["skipped"]:
        row.skipped = 1
        return row
    report = REPORTS / f"{row.name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += [*selection(row.version), *options]
    status = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, "REDIS_SERVER": entry["server"]}, check=False
    ).returncode
    if report.is_file():
        for suite in xml.etree.ElementTree.parse(report).getroot().iter("testsuite"):
            number = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
            row.failed += number["failures"] + number["errors"]
            row.skipped += number["skipped"]
            row.passed += number["tests"] - number["failures"] - number["errors"] - number["skipped"]
    if row.failed == 0 and (status != 0 or row.passed == 0):
        row.failed = 1
        row.note = f"pytest ended with {status}" if status else "no test passed"
    return row


def table(rows):
    head = ("server", "version", "passed", "failed", "skipped", "")
    lines = [head] + [
        (row.name, row.version, str(row.passed), str(row.failed), str(row.skipped), row.note) for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = [
            cell.rjust(width) if 2 <= column <= 4 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        ]
        yield "  ".join(cells).rstrip()


def main():
    REPORTS.mkdir(parents=True, exist_ok=True)
    for name in NOT_CORE:
        if not (TESTS / name).is_file():
            sys.exit(f"{name} is no file of tests: see NOT_CORE in {Path(__file__).name}")
    rows = []
    for entry in servers():
        print(f"--- {entry['name']}: {entry['version'] or entry['skipped']}", flush=True)
        row = test(entry, sys.argv[1:])
        rows.append(row)
        print(f"{row.name} ({row.version}): {row.note or row.counts()}", flush=True)
    if not rows:
        sys.exit("no servers: run tests/servers/fetch.py")
    print(*table(rows), sep="\n")
    total = Row("", "", *(sum(getattr(row, count) for row in rows) for count in ("passed", "failed", "skipped")))
    print(total.counts())
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
