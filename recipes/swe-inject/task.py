"""Packages with one bug each: the tests that find it are hidden, but for the text of one."""

from __future__ import annotations

import ast
import asyncio
import difflib
import io
import itertools
import json
import random
import tokenize
import zlib
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentrl import Message, Say, Task, Tool
from agentrl.registry.references import load_object
from agentrl.rewards import Scored, reward
from agentrl.rewards.functions.code import code_tests
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from agentrl.types.sandbox import Sandbox

HERE = Path(__file__).parent
code_of: Callable[[str], dict[str, str]] = load_object("./packages.py:code_of", HERE)
tests_of: Callable[[str], dict[str, bytes]] = load_object("./packages.py:tests_of", HERE)
PACKAGES: dict[str, tuple[str, str, str, str]] = load_object("./packages.py:PACKAGES", HERE)
_SHOWN = 2500  # characters of the test that is shown
_COMMIT = (
    "git init -q . && git config user.name agent && git config user.email agent@localhost && git add -A && "
    "GIT_AUTHOR_DATE='2031-01-01T00:00:00Z' GIT_COMMITTER_DATE='2031-01-01T00:00:00Z' git commit -q -m package"
)


def bugs(n: int = 512, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """The first `n` bugs, every package in turn.

    Args:
        seed: shuffles the bugs of each package.
        held_out: those for evaluation (one in four, by a hash of the file and line), not the rest.
    """
    pools = []
    for package in PACKAGES:
        path = HERE / f"mutants-{package}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        rows = [row for row in rows if (zlib.crc32(f"{row['path']} {row['line']}".encode()) % 4 == 0) == held_out]
        random.Random(f"{seed} {package}").shuffle(rows)
        pools.append(rows)
    dealt = (row for several in itertools.zip_longest(*pools) for row in several if row is not None)
    for row in itertools.islice(dealt, n):
        text = (
            f"The Python package {row['package']} lies in {row['package']}/. One statement of it is wrong. "
            f"This test fails:\n\n{_failing_test(row)}\n\n"
            "Find the bug and repair it in place. The tests themselves are not here."
        )
        yield Task.of(row["id"], text, bug=row)


def _failing_test(row: dict[str, Any]) -> str:
    """The source of the first test that fails, wherever in the file it is defined: classes inherit tests."""
    file, *_, name = row["fails"][0].split("::")
    source = tests_of(row["package"])[file].decode()
    node = next(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name)
    return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])[:_SHOWN]


def broken(row: dict[str, Any]) -> str:
    """The text of the file with the bug."""
    whole = code_of(row["package"])[row["path"]]
    first = row["first"]
    assert whole[first : first + len(row["old"])] == row["old"], f"{row['id']}: another version of the package"
    return whole[:first] + row["new"] + whole[first + len(row["old"]) :]


class Package(Tool):
    """Puts the package with the bug into the sandbox, as its only commit: no tests, no compiled files."""

    needs_sandbox = True
    stateless = True

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Writes the files, and commits them."""
        assert sandbox is not None
        row = task.data["bug"]
        files = {**code_of(row["package"]), row["path"]: broken(row)}
        await asyncio.gather(*(sandbox.write(path, content) for path, content in files.items()))
        done = await sandbox.exec(_COMMIT, timeout_s=60)
        if not done.ok:
            raise RecipeError(f"git fails: {done.text[-300:]}", place="sandbox", remedy="agentrl sandbox build swe")


@reward(
    source="SWE-smith's procedural modifiers, arXiv:2504.21798",
    costs=["sandbox"],
    verifier=True,
    forgeable="tests and code share a process, where code that patches pytest passes",
)
async def repaired(
    task: Task,
    episode: Episode,
    open_sandbox: Callable[[], Awaitable[Sandbox]],
    sandbox: Sandbox,
    timeout_s: float = 120,
) -> float | Scored:
    """Whether the tests that failed pass, and those that passed still do.

    They run in a fresh sandbox that gets the package's own files as the agent left them, by name, and the tests from
    the sdist. What else the agent wrote is not there: no tests, conftest.py, settings, programs or further modules.
    """
    row = task.data["bug"]
    with suppress(OSError):  # a file that is gone or unreadable is for code_tests to say
        if (await sandbox.read(row["path"])).decode("utf-8", "replace") == broken(row):
            return Scored(0.0, "the file with the bug is unchanged")
    command = f"python3 -m pytest -q --tb=line -p no:cacheprovider {' '.join(row['tests'])}"
    tests = {"files": tests_of(row["package"]), "command": command}
    given = msgspec.structs.replace(task, data={"tests": tests})
    paths = list(code_of(row["package"]))
    return await code_tests(given, episode, open_sandbox, sandbox, files=paths, isolation="none", timeout_s=timeout_s)


@reward(costs=["sandbox"], bounds=(0, 1))
async def restored(task: Task, sandbox: Sandbox) -> float | Scored:
    """Gives 1 if all files of the package have the tokens of the published ones; comments and line breaks are free.

    Nothing that the agent wrote is run, so nothing that it wrote can forge this. A repair in other words is 0.
    """
    for path, right in code_of(task.data["bug"]["package"]).items():
        try:
            left = (await sandbox.read(path, limit=1 << 20)).decode()
            same = left == right or _tokens(left) == _tokens(right)
        except (OSError, UnicodeDecodeError, SyntaxError, tokenize.TokenError) as error:
            return Scored(0.0, f"{path}: {type(error).__name__}")
        if not same:
            return Scored(0.0, f"{path} differs from the published file")
    return 1.0


def _tokens(source: str) -> list[tuple[int, str]]:
    """The tokens of a program: blanks at the beginning of a line count as a level, not as a text."""
    free = (tokenize.COMMENT, tokenize.NL)
    levels = (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE)
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(each.type, "" if each.type in levels else each.string) for each in found if each.type not in free]


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Looks at the line, and applies a patch that makes it what it was."""
    row = task.data["bug"]
    path, right = row["path"], code_of(row["package"])[row["path"]]
    ends = [f"a/{path}", f"b/{path}"]
    before, after = (text.removesuffix("\n").split("\n") for text in (broken(row), right))
    lines = difflib.unified_diff(before, after, *ends, lineterm="")
    yield Say(calls=[("shell", {"command": f"sed -n {row['line']}p {path}"})])
    yield Say(calls=[("apply_patch", {"patch": "\n".join(lines) + "\n"})])
    yield Say("Done.")


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Replaces a comparison, somewhere in the file."""
    path = task.data["bug"]["path"]
    line = rng.randint(1, code_of(task.data["bug"]["package"])[path].count("\n"))
    yield Say(calls=[("shell", {"command": f"sed -n {line}p {path}"})])
    one, other = rng.sample(["==", "!=", "<", ">", "+", "-", "None", "pass"], 2)
    yield Say(calls=[("shell", {"command": f"sed -i '{line}s/{one}/{other}/' {path}"})])
    yield Say("Done.")


def empty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Says nothing."""
    yield Say()


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Adds a comment to the file with the bug: the tests run on it, and must find the bug."""
    yield Say(calls=[("shell", {"command": f"printf '\\n# It was reviewed.\\n' >> {task.data['bug']['path']}"})])
    yield Say("All tests pass.")
