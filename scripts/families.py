"""Runs families of tests, which CI runs whole only if their files changed, and records when each was last green.

    python scripts/families.py run vllm      # makes what it needs, runs its tests, records it in tests/families.lock
    python scripts/families.py run --changed # the same for each that changed since its record
    python scripts/families.py status        # which families changed since their record; exit 1 if any did
    python scripts/families.py ci            # one test of some families, and the whole of each that changed

tests/families.toml lists the families. A family has changed when one of its own files has, its pins among them. CI runs
such a family whole, and fails if all of them together would take longer than `--minutes`. CI never writes the record.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/families.toml"
LOCK = ROOT / "tests/families.lock"
PYTHON = ".venv/bin/python"
UNKNOWN_S = 900
"""Seconds that a family is expected to take that was never recorded."""

INSTALLED = """
from importlib.metadata import distributions
print(*{f"{package.name}=={package.version}" for package in distributions()})
"""
HEAD = "# `make test-FAMILY` writes this file when its tests are green. Do not edit it.\n"


class FamilyError(Exception):
    """A fault of a family or its record, with the command that mends it."""


@dataclass(frozen=True)
class Family:
    """Tests with the mark `family(NAME)`, or another program that checks.

    Attributes:
        needs: what has to be made: a make target each.
        command: arguments of the interpreter; empty: pytest with the tests among `files`.
        environments: folders with the Python environments whose versions are recorded.
        files: patterns of git of the family's own files.
        python: the interpreter that runs pytest.
        options: further options of pytest.
        smoke: ids of tests that every CI runs; of a family with a command, arguments of that.
    """

    name: str
    needs: tuple[str, ...]
    files: tuple[str, ...]
    command: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    python: str = PYTHON
    options: tuple[str, ...] = ()
    smoke: tuple[str, ...] = ()

    def digest(self) -> str:
        """Hashes the names and the content of the family's own files.

        Raises:
            FamilyError: a pattern matches nothing, or this is no checkout of git.
        """
        whole = hashlib.sha256()
        for pattern in self.files:
            paths = git("ls-files", "-co", "--exclude-standard", "--deduplicate", "--", pattern).splitlines()
            if not paths:
                raise FamilyError(f"{TABLE.name}, {self.name}: files: no file matches {pattern!r}")
            for path in sorted(paths):
                if (ROOT / path).is_file():
                    whole.update(f"{path}\0{hashlib.sha256((ROOT / path).read_bytes()).hexdigest()}\n".encode())
        return whole.hexdigest()

    def versions(self) -> list[str]:
        """Lists what is installed in the family's environments, as `name==version`."""
        installed: set[str] = set()
        for folder in self.environments:
            installed.update(output(ROOT / folder / "bin/python", "-c", INSTALLED).split())
        return sorted(installed)

    def tests(self) -> list[str]:
        """Lists the files of tests among the family's own files."""
        paths = git("ls-files", "-co", "--exclude-standard", "--", *self.files).splitlines()
        return [path for path in paths if Path(path).match("tests/**/test_*.py")]

    def run(self, *tests: str) -> int:
        """Makes what the tests need and runs them, all of the family's or `tests`. Returns the exit code."""
        subprocess.run(["make", *self.needs], cwd=ROOT, check=True)
        tested = ("-m", "pytest", "-q", f"--family={self.name}", *self.options, *(tests or self.tests()))
        command = [*self.command, *tests] if self.command else tested
        return subprocess.run([str(ROOT / self.python), *command], cwd=ROOT).returncode


@dataclass(frozen=True)
class Record:
    """One entry of families.lock.

    Attributes:
        files: the digest of the family's own files when its tests were green.
        commit: where HEAD was.
        seconds: that the tests took, their preparation included.
        versions: the digest of the versions of all packages.
        packages: versions of the packages that requirements/*.in ask for.
        seal: a digest of the rest, which shows that nobody edited it.
    """

    files: str
    commit: str
    seconds: int
    versions: str
    packages: list[str] = field(default_factory=list)
    seal: str = ""

    def sealed(self) -> str:
        content = {key: value for key, value in asdict(self).items() if key != "seal"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run the tests of families and record each that is green")
    running.add_argument("names", nargs="*")
    running.add_argument("--changed", action="store_true", help="each family that changed since its record")
    commands.add_parser("status", help="say which families changed since their record")
    testing = commands.add_parser("ci", help="run one test of some families, and the changed families whole")
    testing.add_argument("--minutes", type=float, default=40, help="the most that changed families may take")
    arguments = parser.parse_args()
    try:
        known = families()
        if arguments.command == "run" and not arguments.changed:
            return max(run(known, name) for name in arguments.names) if arguments.names else 0
        records = recorded(known)
        if arguments.command == "run":
            return max((run(known, name) for name in stale(known, records)), default=0)
        if arguments.command == "status":
            return status(known, records)
        return ci(known, records, 60 * arguments.minutes)
    except FamilyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(known: dict[str, Family], name: str) -> int:
    """Runs a family's tests; records that they were green, unless this is CI or its files are not committed."""
    if name not in known:
        raise FamilyError(f"there is no family {name!r}: {', '.join(known)}")
    family = known[name]
    before, since = family.digest(), time.time()
    code = family.run()
    if code:
        return code
    if os.environ.get("CI"):
        return 0
    changed = git("status", "--porcelain", "--", *family.files).splitlines()
    if changed or family.digest() != before:
        print(f"green, but not recorded: commit these first, and run `make test-{name}` again\n" + "\n".join(changed))
        return 0
    installed = family.versions()
    asked = {line.partition("==")[0] for line in directly(family)}
    record = Record(
        files=before,
        commit=git("rev-parse", "HEAD").strip(),
        seconds=round(time.time() - since),
        versions=hashlib.sha256("\n".join(installed).encode()).hexdigest(),
        packages=[each for each in installed if each.partition("==")[0].lower().replace("_", "-") in asked],
    )
    try:
        records = recorded(known)
    except FamilyError as error:
        print(f"the record was of no use, and is begun again: {error}", file=sys.stderr)
        records = {}
    records[name] = Record(**{**asdict(record), "seal": record.sealed()})
    LOCK.write_text(HEAD + json.dumps({key: asdict(records[key]) for key in sorted(records)}, indent=1) + "\n")
    print(f"recorded in {LOCK.relative_to(ROOT)}: commit it")
    return 0


def directly(family: Family) -> Iterable[str]:
    """Yields the names of the packages that the requirements of a family name."""
    for pattern in family.files:
        path = ROOT / pattern
        if path.suffix in (".in", ".txt") and path.is_file() and (path.suffix == ".in" or path.stem.endswith("-alone")):
            for line in path.read_text().splitlines():
                name = "".join(c if c.isalnum() or c in "-_." else " " for c in line.partition("#")[0]).split()
                yield from (each.lower().replace("_", "-") for each in name[:1])


def status(known: dict[str, Family], records: dict[str, Record]) -> int:
    changed = stale(known, records)
    for name in known:
        record = records.get(name)
        when = f"green at {record.commit[:7]}, {record.seconds} s" if record else "never recorded"
        print(f"{name:12} {'changed: make test-' + name if name in changed else 'unchanged':32} {when}")
    return 1 if changed else 0


def ci(known: dict[str, Family], records: dict[str, Record], seconds: float) -> int:
    """Runs the families that changed whole, and the chosen tests of the others.

    Raises:
        FamilyError: the changed ones would take longer than `seconds`, by their records.
    """
    changed = stale(known, records)
    expected = sum(records[name].seconds if name in records else UNKNOWN_S for name in changed)
    if expected > seconds:
        commands = " && ".join(f"make test-{name}" for name in changed)
        raise FamilyError(
            f"families whose files changed ({', '.join(changed)}) would take {expected / 60:.0f} minutes here, of "
            f"{seconds / 60:.0f} allowed: {commands}, then commit {LOCK.name}"
        )
    failed = []
    for family in known.values():
        since = time.time()
        if family.name in changed:
            code = family.run()
        elif family.smoke:
            code = family.run(*family.smoke)
        else:
            continue
        print(f"family {family.name}: {'failed' if code else 'green'}, {time.time() - since:.0f} s", flush=True)
        if code:
            failed.append(family.name)
    if failed:
        print("error: " + "; ".join(f"make test-{name} is red" for name in failed), file=sys.stderr)
    return 1 if failed else 0


def stale(known: dict[str, Family], records: dict[str, Record]) -> list[str]:
    """Lists the families whose own files differ from those that were green."""
    now = {name: family.digest() for name, family in known.items()}
    return [name for name in known if name not in records or records[name].files != now[name]]


def families() -> dict[str, Family]:
    """Reads tests/families.toml.

    Raises:
        FamilyError: an unknown key.
    """
    read = {}
    for name, table in tomllib.loads(TABLE.read_text()).items():
        try:
            keys: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
            read[name] = Family(name, **keys)
        except TypeError as error:
            raise FamilyError(f"{TABLE.name}, {name}: {error}") from None
    return read


def recorded(known: dict[str, Family]) -> dict[str, Record]:
    """Reads tests/families.lock.

    Raises:
        FamilyError: it is no JSON, names a family that does not exist, or was edited.
    """
    if not LOCK.exists():
        return {}
    lines = LOCK.read_text().splitlines(keepends=True)
    try:
        content = json.loads("".join(line for line in lines if not line.startswith("#")))
    except ValueError as error:
        raise FamilyError(
            f"{LOCK.name} cannot be read ({error}): restore it from git, or run each family again"
        ) from None
    records = {}
    for name, entry in content.items():
        if name not in known:
            raise FamilyError(f"{LOCK.name}, {name}: {TABLE.name} has no such family: remove the entry")
        try:
            record = Record(**entry)
        except TypeError as error:
            raise FamilyError(f"{LOCK.name}, {name}: {error}: make test-{name}") from None
        if record.seal != record.sealed():
            raise FamilyError(f"{LOCK.name}, {name}: the entry was edited by hand: make test-{name}")
        records[name] = record
    return records


def git(*arguments: str) -> str:
    try:
        return output("git", *arguments)
    except (OSError, subprocess.CalledProcessError) as error:
        raise FamilyError(f"families are known by their files in git: {error}") from None


def output(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
