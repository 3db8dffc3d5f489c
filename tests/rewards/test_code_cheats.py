"""Code that tries to be taken for right, and code that is: by every kind of tests, in real sandboxes."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentrl.rewards.functions.code import code_tests
from agentrl.rewards.isolation import passes
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.types.sandbox import Sandbox, SandboxLost, SandboxSpec
from agentrl.types.task import Task
from tests.rewards.cheats import CHEATS, PARTICULAR
from tests.rewards.honest import HONEST
from tests.rewards.make import make_episode

pytestmark = [pytest.mark.slow, pytest.mark.family("verifiers")]

SITE = "/tmp/site"
RIGHT = "def double(x):\n    return 2 * x\n"
UNITTEST = """
import unittest, solution
from solution import double
class T(unittest.TestCase):
    def test_ints(self):
        self.assertEqual(double(2), 4)
        self.assertAlmostEqual(solution.double(7), 14)
    def test_texts(self):
        self.assertTrue(double('a') == 'aa')
        self.assertIn(double(2), [4])
"""
PYTEST = """
import pytest
from solution import *
import solution
@pytest.mark.parametrize(('x', 'y'), [(2, 4), (7, 14), ('a', 'aa')])
def test_double(x, y):
    assert double(x) == y
    assert solution.double(x) == y
"""
KINDS: dict[str, Any] = {
    "pytest": {"files": {"test_it.py": PYTEST}, "command": "python3 -m pytest -q"},
    "unittest": {"files": {"test_it.py": UNITTEST}, "command": "python3 -m unittest"},
    "shell": {
        "files": {"check.py": "from solution import double\nassert double(2) == 4\nassert double('a') == 'aa'\n"},
        "command": "cd /work && python3 check.py",
    },
    "asserts": ["assert double(2) == 4", "assert all(double(x) == 2 * x for x in [2, 7, 'a'])"],
    "program": [{"input": "2", "output": "4"}],
}


def _not_needed(folder: str, names: list[str]) -> set[str]:
    """Compiled files, and most of the 600 languages and styles that pytest could colour."""
    kept = ("__init__.py", "_mapping.py", "python.py", "diff.py", "terminal.py")
    colours = Path(folder).name in ("lexers", "styles", "formatters")
    return {name for name in names if name == "__pycache__" or (colours and name not in kept)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """pytest, as a tar: the system's Python does not have it. It is compiled for that one, once for all sandboxes."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin)
        if path.name == "__init__.py":
            shutil.copytree(path.parent, folder / name, ignore=_not_needed)
        else:
            shutil.copy(path, folder)
    compiling = ["/usr/bin/python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(folder)]
    subprocess.run(compiling, check=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, ".")
    return packed.getvalue()


class Bench:
    """Scores answers in sandboxes that have pytest."""

    def __init__(self, backend: NamespaceBackend, site: bytes) -> None:
        self.backend, self.site, self.turn = backend, site, asyncio.Semaphore(2)
        self.boxes: list[Any] = []

    async def score(self, answer: str, tests: Any, **settings: Any) -> Any:
        boxes: list[Sandbox] = []
        pytest_too = "pytest" in str(tests)

        async def open_sandbox() -> Sandbox:
            spec = SandboxSpec(env={"PYTHONPATH": SITE, "PYTHONDONTWRITEBYTECODE": "1"} if pytest_too else {})
            box = await self.backend.create(spec)
            boxes.append(box)
            self.boxes.append(box)
            if pytest_too:
                unpack = f"mkdir -p {SITE} && tar -C {SITE} -xf -"
                assert (await box.exec(unpack, stdin=self.site)).ok
            return box

        data = settings.pop("data", {})
        task = Task.of("t", "", tests=tests, **data)
        async with self.turn:
            try:
                return await code_tests(task, make_episode(task, answer=answer), open_sandbox, **settings)
            finally:
                await asyncio.gather(*(box.close() for box in boxes))


@pytest.fixture
async def bench(site: bytes) -> AsyncIterator[Bench]:
    backend = NamespaceBackend()
    yield Bench(backend, site)
    await backend.close()


EXITS = [
    "os._exit", "sys.exit", "exit in double", "sys.exit in double", "atexit", "thread", "SIGALRM", "excepthook",
    "execv", "kill the parent", "SystemExit subclass", "conftest", "pytest.ini", "prints a verdict",
    "forger in the background",
]  # fmt: skip
AIMED = {
    "pytest": {*EXITS, "SkipTest", "pytest.skip", "pytest.exit", "patched pytest", "patched AssertionError"},
    "unittest": {"SkipTest", "SkipTest in double", "patched unittest", "patched AssertionError", "sys.exit"},
    "shell": {"reads the tests", "rewrites tests", "sys.exit", "prints a verdict"},
}
"""Tricks that are aimed at a kind of tests, or at the end of its process."""


def tried(kind: str) -> list[str]:
    """All tricks for the kinds whose tests start fast. The others share them, and each has those aimed at it."""
    if kind not in AIMED:
        return [*CHEATS]
    part = [*AIMED].index(kind)
    return [name for k, name in enumerate(CHEATS) if k % len(AIMED) == part or name in AIMED[kind]]


@pytest.mark.parametrize("kind", KINDS)
async def test_no_trick_is_taken_for_a_solution(bench, kind):
    names = tried(kind)
    right = "print(2 * int(input()))" if kind == "program" else RIGHT
    assert (await bench.score(right, KINDS[kind], timeout_s=60)).value == 1.0, "the honest one"
    limits = {"never ends": 3.0}
    scored = await asyncio.gather(
        *(bench.score(CHEATS[name], KINDS[kind], timeout_s=limits.get(name, 60.0)) for name in names)
    )
    rewarded = [name for name, one in zip(names, scored, strict=True) if one.value != 0.0]
    assert not rewarded


@pytest.mark.parametrize("form", ["script", "statements"])
async def test_no_form_of_a_test_helps_a_wrong_solution(bench, form):
    def tests(text: str) -> Any:
        files = {"files": {"check.py": text}, "command": "python3 check.py"}
        return files if form == "script" else [text]

    texts = {text for _, text in PARTICULAR.values()}
    right = await asyncio.gather(*(bench.score(RIGHT, tests(text), timeout_s=60) for text in texts))
    assert all(one.value == 1.0 for one in right), "the honest ones"
    wrong = await asyncio.gather(*(bench.score(code, tests(text), timeout_s=60) for code, text in PARTICULAR.values()))
    assert [name for name, one in zip(PARTICULAR, wrong, strict=True) if one.value != 0.0] == []


@pytest.mark.parametrize("whose", ["code", "tests"])
async def test_a_sandbox_that_is_killed_from_outside_is_no_verdict(bench, whose, monkeypatch):
    async def harmed(judge: Any, *arguments: Any, **settings: Any) -> Any:
        victims = [box for box in bench.boxes if (box is judge) == (whose == "tests")]
        os.kill(victims[0]._tree.init_pid, signal.SIGKILL)
        return await passes(judge, *arguments, **settings)

    monkeypatch.setattr("agentrl.rewards.functions.code.passes", harmed)
    with pytest.raises(SandboxLost):
        await bench.score(RIGHT, ["assert double(2) == 4"], timeout_s=60)


@pytest.mark.parametrize("name", HONEST)
async def test_a_right_solution_passes(bench, name):
    code, check = HONEST[name]
    scored = await bench.score(code, {"files": {"check.py": check}, "command": "python3 check.py"}, timeout_s=60)
    assert scored.value == 1.0, scored.note


@pytest.mark.parametrize("kind", ["pytest", "unittest", "asserts"])
async def test_an_exit_earns_nothing_in_one_process_either(bench, kind):
    """The weaker mode promises no more than this."""
    assert (await bench.score(RIGHT, KINDS[kind], timeout_s=60, isolation="none")).value == 1.0, "the honest one"
    scored = await asyncio.gather(
        *(bench.score(CHEATS[name], KINDS[kind], timeout_s=60, isolation="none") for name in EXITS)
    )
    assert [name for name, one in zip(EXITS, scored, strict=True) if one.value != 0.0] == []
