#!/usr/bin/env python3
"""Fetch other Redis and Valkey servers for the tests, beside the system's own.

    python3 tests/servers/fetch.py [--into DIR]

The distribution's newer (and older) releases package servers that the running
release does not.  This script downloads those packages and the libraries they
need, unpacks them under DIR (default: target/servers) and writes, for each
server, the executables

    DIR/<name>/server   DIR/<name>/cli   DIR/<name>/benchmark

Nothing is installed: the system's packages, package lists and apt caches are
neither changed nor read.  apt is run with its own directories (DIR/apt), and
with sources derived from the machine's own entry for its distribution, with
only the release's name replaced; so the archive or mirror in use, and the
keyring that must have signed it, are the ones the machine already trusts.  What
apt cannot verify is skipped.

One line is printed for each server, and DIR/servers.json gets a list of

    {"name", "version", "server", "cli", "benchmark", "skipped"}

in which the three programs are absolute paths (or null), and "skipped" is null
or the reason why there is no such server.  The system's redis-server is the
first, named after its version (as in "redis-7.0"); a server whose path is in
the environment variable REDIS_SERVER is added as "given".

A second run keeps each server that still runs.  A server that cannot be had is
not an error: the exit status is 0.
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# The releases to look into, oldest first, for each distribution.  The second
# name is the release that must be there as well for the libraries, if the first
# is only an addition to it.
RELEASES = {
    "debian": [
        ("bullseye", None),
        ("trixie", None),
        ("trixie-backports", "trixie"),
        ("forky", None),
        ("sid", None),
        ("experimental", "sid"),
    ],
    "ubuntu": [
        ("jammy", None),
        ("noble", None),
        ("questing", None),
        ("resolute", None),
        ("devel", None),
    ],
}

# The servers wanted: name, product, start of the version, and which of the
# releases that have one is taken.
WANTED = [
    ("redis-6.0", "redis", "6.0.", "oldest"),
    ("redis-8", "redis", "8.", "oldest"),
    ("redis-8-newest", "redis", "8.", "newest"),
    ("valkey-8.1", "valkey", "8.1.", "oldest"),
    ("valkey-9", "valkey", "9.", "oldest"),
]

PROGRAMS = ("server", "cli", "benchmark")

# The dependencies that are followed: shared libraries, and Lua's extensions
# (which some of the servers link as shared libraries).
LIBRARY = re.compile(r"(lib|lua)")

# The C runtime.  It is the release's own if that is newer than the machine's,
# and the machine's otherwise: a module built on this machine loads into either.
RUNTIME = {"libc6", "libgcc-s1", "libstdc++6"}

# Seconds allowed for one command that uses the network, and for one that does not.
NETWORK_TIMEOUT = 300
LOCAL_TIMEOUT = 60


class Unavailable(Exception):
    """The reason why a server, or a release, cannot be had."""


@dataclass
class Server:
    """One entry of servers.json."""

    name: str
    version: str | None = None
    server: str | None = None
    cli: str | None = None
    benchmark: str | None = None
    skipped: str | None = None


# ---------------------------------------------------------------- commands


def run(command, timeout=LOCAL_TIMEOUT, cwd=None):
    """Run a command and return its output; raise Unavailable if it fails."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took more than {timeout} s") from None
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise Unavailable(complaint(done))
    return done.stdout


def complaint(done):
    """What a failed command said: apt's first error, or the last line of any other."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line[2:].strip() for line in lines if line.startswith(("E:", "W:"))]
    # A signature's failure is reported along with its consequences: name the cause.
    errors.sort(key=lambda error: "GPG error" not in error)
    if errors:
        return errors[0]
    return lines[-1] if lines else f"{done.args[0]} failed ({done.returncode})"


def paragraphs(text):
    """The paragraphs of a text in Debian's control format, as dictionaries."""
    fields = {}
    name = None
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, None
        elif line[0].isspace():
            if name is not None:
                fields[name] += "\n" + line
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()


# ---------------------------------------------------------------- the machine's archive


def running_release():
    """The distribution's id and the release's codename, as in ("debian", "bookworm")."""
    fields = {}
    try:
        for line in Path("/etc/os-release").read_text().splitlines():
            name, _, value = line.partition("=")
            fields[name] = value.strip("\"'")
    except OSError:
        pass
    return fields.get("ID", "unknown"), fields.get("VERSION_CODENAME", "")


def machine_sources():
    """The entries of the machine's package sources, each as the fields of a .sources file."""
    apt = Path("/etc/apt")
    parts = apt / "sources.list.d"
    for file in [apt / "sources.list", *sorted(parts.glob("*.list"))]:
        if not file.is_file():
            continue
        for line in file.read_text().splitlines():
            entry = re.match(r"deb\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)\s+([^#]+)", line.strip())
            if entry:
                options, uri, suite, components = entry.groups()
                fields = {"URIs": uri, "Suites": suite, "Components": components.strip()}
                signed_by = re.search(r"signed-by=(\S+)", options or "", re.IGNORECASE)
                if signed_by:
                    fields["Signed-By"] = signed_by[1]
                yield fields
    for file in sorted(parts.glob("*.sources")):
        for fields in paragraphs(file.read_text()):
            if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes") != "no":
                yield fields


def machine_archive(distribution, codename):
    """The machine's entry for the main archive of the release that it runs."""
    entries = [
        fields
        for fields in machine_sources()
        if codename in fields.get("Suites", "").split()
        and "main" in fields.get("Components", "").split()
    ]
    # Other vendors' archives can have a suite of the same name: the distribution's
    # own, and its mirrors, end in its name.
    entries.sort(key=lambda fields: not fields["URIs"].rstrip("/").endswith("/" + distribution))
    if not entries:
        raise Unavailable(f"no package source of this machine is {distribution}'s {codename}")
    return entries[0]


class Release:
    """One release of the distribution, looked into by apt with its own directories."""

    def __init__(self, directory, archive, name, base):
        self.name = name
        self.directory = directory / name
        self.lists = directory / "lists"  # shared by the releases
        self.archive = archive
        self.suites = [name] if base is None else [base, name]
        self.opened = False
        self.failure = None

    def open(self):
        """Bring the package lists up to date, once; raise Unavailable if that fails."""
        if not self.opened:
            self.opened = True
            try:
                self.configure()
                self.apt("apt-get", "update", timeout=NETWORK_TIMEOUT)
            except Unavailable as error:
                self.failure = str(error)
        if self.failure:
            raise Unavailable(self.failure)

    def configure(self):
        """Write the sources and the configuration that apt is run with."""
        for path in (self.lists / "partial", self.directory / "archives" / "partial"):
            path.mkdir(parents=True, exist_ok=True)
        (self.directory / "status").write_text("")  # as if nothing were installed
        fields = {
            "Types": "deb",
            "URIs": self.archive["URIs"],
            "Suites": " ".join(self.suites),
            "Components": self.archive["Components"],
            "Architectures": run(["dpkg", "--print-architecture"]).strip(),
            "Targets": "Packages",
        }
        if "Signed-By" in self.archive:
            fields["Signed-By"] = self.archive["Signed-By"]
        sources = "".join(f"{name}: {value}\n" for name, value in fields.items())
        (self.directory / "release.sources").write_text(sources)
        (self.directory / "apt.conf").write_text(
            f"""\
Dir::State "{self.directory}";
Dir::State::status "{self.directory}/status";
Dir::State::lists "{self.lists}";
Dir::Cache "{self.directory}";
Dir::Etc::sourcelist "{self.directory}/release.sources";
Dir::Etc::sourceparts "-";
Dir::Etc::preferences "-";
Dir::Etc::preferencesparts "-";
APT::Get::List-Cleanup "false";
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""
        )

    def apt(self, program, *arguments, timeout=LOCAL_TIMEOUT, cwd=None):
        command = [program, "-c", self.directory / "apt.conf", "-q", *arguments]
        return run(command, timeout, cwd)

    def show(self, *packages):
        """What the lists say of some packages, each a name or name=version; {} of the unknown."""
        try:
            text = self.apt("apt-cache", "--no-all-versions", "show", *packages)
        except Unavailable:
            if len(packages) == 1:
                return {}
            # One that is unknown fails them all: ask for each by itself.
            shown = {}
            for package in packages:
                shown.update(self.show(package))
            return shown
        return {fields["Package"]: fields for fields in paragraphs(text)}

    def version(self, package, start):
        """The highest version of a package whose upstream version starts so, or None."""
        try:
            text = self.apt("apt-cache", "madison", package)
        except Unavailable:
            return None
        for line in text.splitlines():  # highest first
            version = line.split("|")[1].strip()
            if version.split(":")[-1].startswith(start):
                return version
        return None

    def closure(self, packages, without):
        """The packages and the libraries they need, as fields by name."""
        found = {}
        missing = list(packages)
        while missing:
            shown = self.show(*missing)
            found.update(shown)
            missing = []
            for fields in shown.values():
                depends = ",".join(fields.get(key, "") for key in ("Pre-Depends", "Depends"))
                for dependency in depends.split(","):
                    # Of alternatives, the first is the distribution's choice.
                    name = re.split(r"[\s(|:]", dependency.strip())[0]
                    if LIBRARY.match(name) and name not in {*found, *missing, *without}:
                        missing.append(name)
        return found

    def download(self, packages):
        """Download packages, which apt verifies, and return their files."""
        archives = self.directory / "archives"
        names = [f"{name}={fields['Version']}" for name, fields in packages.items()]
        self.apt("apt-get", "download", *names, timeout=NETWORK_TIMEOUT, cwd=archives)
        files = []
        for name, fields in packages.items():
            version = fields["Version"].replace(":", "%3a")
            files.append(archives / f"{name}_{version}_{fields['Architecture']}.deb")
        return files


# ---------------------------------------------------------------- servers


def version_of(server):
    """The product and version of a server program, as in ("Redis", "8.0.2")."""
    output = run([server, "--version"])
    match = re.search(r"(\w+) server v=(\S+)", output)
    if not match:
        raise Unavailable(f"{server} --version says {output.strip()[:80]!r}")
    return match[1], match[2]


def newer_than_machine(libc):
    """Whether a version of the C library is newer than the machine's own."""

    def number(text):
        return [int(part) for part in re.findall(r"\d+", text)[:2]]

    return number(libc) > number(os.confstr("CS_GNU_LIBC_VERSION"))


def write_program(directory, program, binary, own_runtime):
    """Write the script that runs an unpacked binary with the libraries unpacked beside it.

    The binary is run by the dynamic loader of the C library it is to use, and the
    script execs it, so that the script's process id is the server's.
    """
    root = directory / "root"
    # The name of the loader is at the start of the binary, in the section .interp.
    with open(binary, "rb") as file:
        interpreter = re.search(rb"/[\w/.-]*/ld[\w.-]*\.so\.\d+", file.read(8192))
    if not interpreter:
        raise Unavailable(f"{binary.name} names no dynamic loader")
    loader = Path(interpreter[0].decode())
    if own_runtime:
        # In some releases the loader's link is absolute: take one that stays inside.
        inside = [
            path
            for path in sorted(root.rglob(loader.name))
            if path.is_file() and path.resolve().is_relative_to(root.resolve())
        ]
        if not inside:
            raise Unavailable(f"the packages do not have the loader {loader.name}")
        loader = inside[0]
    libraries = sorted(
        {path.parent for path in root.rglob("lib*.so.*") if path.suffix != ".py"}  # gdb's
    )

    def place(path):
        if path.is_relative_to(directory):
            return f"$here/{path.relative_to(directory)}"
        return str(path)

    # The server runs itself again by its argv[0] (as DEBUG RESTART does), so that
    # is this script, where the loader can set it (glibc 2.33); it is the binary otherwise.
    # The programs tell from the name in argv[0] what to be, and "server" is the server.
    try:
        argv0 = '--argv0 "$here/$name" ' if "--argv0" in run([loader, "--help"]) else ""
    except Unavailable:
        argv0 = ""

    script = directory / program
    script.write_text(
        f"""\
#!/bin/sh
# Written by tests/servers/fetch.py: runs {binary.name} with the libraries unpacked beside it.
self=$(readlink -f -- "$0")
here=${{self%/*}}
name=${{self##*/}}
exec "{place(loader)}" {argv0}\\
    --library-path "{":".join(map(place, libraries))}" \\
    "{place(binary)}" "$@"
"""
    )
    script.chmod(0o755)


def unpack(release, product, version, directory):
    """Make a directory with a server's packages, its libraries and the scripts that run it."""
    libc = release.show("libc6").get("libc6", {}).get("Version", "0")
    own_runtime = newer_than_machine(libc)
    packages = release.closure(
        [f"{product}-server={version}", f"{product}-tools={version}"],
        without=set() if own_runtime else RUNTIME,
    )

    root = directory / "root"
    root.mkdir(parents=True)
    for file in release.download(packages):
        run(["dpkg-deb", "-x", file, root])
    for program in PROGRAMS:
        binary = root / "usr" / "bin" / f"{product}-{program}"
        write_program(directory, program, binary, own_runtime)
    (directory / "packages.txt").write_text(
        f"# from {release.name}\n"
        + "".join(f"{name} {fields['Version']}\n" for name, fields in sorted(packages.items()))
    )


def fetch(name, product, start, releases, into):
    """Have a server unpacked in into/name, from the first of the releases that has it."""
    directory = into / name
    server = Server(name, **{program: str(directory / program) for program in PROGRAMS})

    def check(where):
        title, number = version_of(where / "server")
        if not number.startswith(start):
            raise Unavailable(f"it says it is {title} {number}")
        run([where / "cli", "--version"])
        run([where / "benchmark", "--help"])  # it has no --version in Redis 6.0
        server.version = f"{title} {number}"

    try:
        check(directory)
        return server
    except Unavailable:
        pass  # not there, or no longer working

    unpacking = into / f"{name}.new"
    failures = {}
    for release in releases:
        try:
            release.open()
            version = release.version(f"{product}-server", start)
            if version is None:
                continue
            shutil.rmtree(unpacking, ignore_errors=True)
            unpack(release, product, version, unpacking)
            check(unpacking)
            shutil.rmtree(directory, ignore_errors=True)
            unpacking.rename(directory)
            return server
        except (Unavailable, OSError) as error:
            failures[release.name] = str(error)
        finally:
            shutil.rmtree(unpacking, ignore_errors=True)
    if failures:
        # The others' reasons are mostly the same.
        (first, reason), *others = failures.items()
        also = ", ".join(release for release, _ in others)
        raise Unavailable(f"{first}: {reason}" + (f" (nor from {also})" if also else ""))
    raise Unavailable("no suite of this archive has it")


def found(name, path):
    """A server that is on the machine already, with the client programs beside it or on PATH."""
    path = Path(path).absolute()
    title, number = version_of(path)
    server = Server(name or f"{title.lower()}-{'.'.join(number.split('.')[:2])}")
    server.version = f"{title} {number}"
    server.server = str(path)
    for program in ("cli", "benchmark"):
        name = f"{title.lower()}-{program}"
        places = [path.parent / name, path.parent / program, shutil.which(name)]
        for place in filter(None, places):
            if os.access(place, os.X_OK):
                setattr(server, program, str(place))
                break
    return server


def all_servers(into):
    """Every server, as it is found; those that cannot be had with the reason."""
    system = "redis-7.0"
    try:
        path = shutil.which("redis-server")
        if path is None:
            raise Unavailable("no redis-server on PATH")
        server = found(None, path)
        system = server.name
        yield server
    except Unavailable as error:
        yield Server(system, skipped=str(error))

    given = os.environ.get("REDIS_SERVER")
    if given and os.sep in given:
        try:
            yield found("given", given)
        except Unavailable as error:
            yield Server("given", skipped=str(error))

    distribution, codename = running_release()
    releases, obstacle = [], None
    try:
        if distribution not in RELEASES:
            raise Unavailable(f"no releases of {distribution} are known to have it")
        archive = machine_archive(distribution, codename)
        releases = [
            Release(into / "apt", archive, name, base) for name, base in RELEASES[distribution]
        ]
    except (Unavailable, OSError) as error:
        obstacle = str(error)

    versions = {}
    for name, product, start, which in WANTED:
        if name == system:
            continue
        try:
            if obstacle:
                raise Unavailable(obstacle)
            order = releases if which == "oldest" else releases[::-1]
            server = fetch(name, product, start, order, into)
            if server.version in versions:
                raise Unavailable(f"it would be the same as {versions[server.version]}")
            versions[server.version] = name
            yield server
        except (Unavailable, OSError) as error:
            yield Server(name, skipped=str(error))

    # What was downloaded is unpacked; the package lists stay, for the next run.
    for release in releases:
        shutil.rmtree(release.directory / "archives", ignore_errors=True)


def report(server):
    """The line printed for a server."""
    if server.skipped:
        return f"{server.name} | skipped: {' '.join(server.skipped.split())}"
    path = Path(server.server)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{server.name} | {server.version} | {path}"


def main():
    parser = argparse.ArgumentParser(
        description="Fetch other Redis and Valkey servers for the tests, without installing them."
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        default=REPOSITORY / "target" / "servers",
        help="where to unpack them (default: target/servers)",
    )
    into = parser.parse_args().into.absolute()
    into.mkdir(parents=True, exist_ok=True)

    with open(into / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one run at a time
        servers = []
        for server in all_servers(into):
            servers.append(server)
            print(report(server), flush=True)
        written = into / "servers.json.new"
        written.write_text(json.dumps([asdict(server) for server in servers], indent=2) + "\n")
        written.rename(into / "servers.json")


if __name__ == "__main__":
    main()
