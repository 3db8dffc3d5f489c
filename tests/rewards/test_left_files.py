"""`code_tests` takes files by path, by pattern and by folder, of the recipe or of the task."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrl.rewards.functions.code import code_tests
from agentrl.rewards.left_files import NotLeft, files_left
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import Sandbox, SandboxSpec
from agentrl.types.task import Task

pytestmark = pytest.mark.slow

FILES = {
    "main.py": "from pkg.deep import two\n\ndef four():\n    return 2 * two()\n",
    "pkg/__init__.py": "",
    "pkg/deep/__init__.py": "def two():\n    return 2\n",
    "pkg/data.txt": "text",
    "pkg/build.sh": "exit 1",
    "pkg/conftest.py": "raise SystemExit",
    "pkg/.hidden.py": "",
    "pkg/__pycache__/x.pyc": "",
    "other/a1.py": "",
    "other/ab.py": "",
}


@pytest.fixture
async def backend() -> AsyncIterator[NamespaceBackend]:
    made = NamespaceBackend()
    yield made
    await made.close()


@pytest.fixture
async def box(backend: NamespaceBackend) -> Sandbox:
    return await backend.create(SandboxSpec(files=FILES))


async def test_what_entries_give(box: Sandbox) -> None:
    wanted = {
        ("main.py",): ["main.py"],
        ("*.py",): ["main.py"],
        ("pkg/",): ["pkg/__init__.py", "pkg/data.txt", "pkg/deep/__init__.py"],
        ("**/*.py",): ["main.py", "other/a1.py", "other/ab.py", "pkg/__init__.py", "pkg/deep/__init__.py"],
        ("pkg/**/*.py", "main.py", "pkg/*.py"): ["pkg/__init__.py", "pkg/deep/__init__.py", "main.py"],
        ("other/a[0-9].py",): ["other/a1.py"],
        ("other/a[!0-9].py",): ["other/ab.py"],
        ("other/a?.py",): ["other/a1.py", "other/ab.py"],
        ("/work/pkg/*.txt",): ["/work/pkg/data.txt"],
        ("pkg/build.sh",): ["pkg/build.sh"],
    }
    for entries, paths in wanted.items():
        assert list(await files_left(box, entries)) == paths, entries


async def test_what_gives_a_note(box: Sandbox) -> None:
    await box.exec("ln -s .. pkg/up; mkdir -p big && cd big && seq 1100 | xargs -I{} touch {}.txt; mkfifo ../pipe.py")
    for entry, said in {
        "src/": "the agent left no file src/",
        "*.rb": r"the agent left no file \*.rb",
        "gone.py": "the agent left no gone.py",
        "big/": "more than 1000 files",
        "pipe.py": "what the agent left at pipe.py",
    }.items():
        with pytest.raises(NotLeft, match=said):
            await files_left(box, [entry])
    assert list(await files_left(box, ["pkg/**/*.txt"])) == ["pkg/data.txt"], "a link to a folder above is not followed"


async def test_a_package_is_tested_by_its_patterns(backend: NamespaceBackend, box: Sandbox) -> None:
    async def scored(data: dict[str, Any], **settings: Any) -> float:
        task = Task.of("t", "x", tests=["assert four() == 4"], **data)
        found: Any = await code_tests(task, None, lambda: backend.create(SandboxSpec()), box, **settings)  # type: ignore[arg-type]
        return float(getattr(found, "value", found))

    assert await scored({}, files=["main.py", "pkg/"]) == 1.0
    assert await scored({}, files=["main.py"]) == 0.0, "the package is not there"
    assert await scored({"mine": ["main.py", "pkg/**/*.py"]}, files=["main.py"], files_key="mine") == 1.0
    assert await scored({}, files=["main.py", "pkg/"], files_key="mine") == 1.0, "a task without its own"
    with pytest.raises(TaskError, match="'mine' is 'main.py'"):
        await scored({"mine": "main.py"}, files_key="mine")


SHADOWS = {
    "math.py": "def isclose(*given):\n    return True\n",
    "statistics.py": "def fmean(given):\n    return 1.0\n",
    "helpers.py": "def expected():\n    return False\n",
    "json/__init__.py": "def loads(text):\n    return [False]\n",
    "fine.py": "VALUE = 3\n",
}


JUDGING = """\
import json, math, statistics, unittest
from fine import VALUE
from helpers import expected

class TestIt(unittest.TestCase):
    def test_it(self):
        assert VALUE == 3
        assert not math.isclose(1, 2)
        assert statistics.fmean([3]) == 3
        assert json.loads("[1]") == [1]
        assert expected() == 4
"""


async def test_new_files_do_not_shadow_what_the_tests_import(backend: NamespaceBackend) -> None:
    box = await backend.create(SandboxSpec(files=SHADOWS))
    files = {"tests/test_it.py": JUDGING, "tests/helpers.py": "def expected():\n    return 4\n"}
    task = Task.of("t", "x", tests={"files": files, "command": "python3 -m unittest discover tests"})

    async def scored(*entries: str) -> Any:
        return await code_tests(task, None, lambda: backend.create(SandboxSpec()), box, files=list(entries))  # type: ignore[arg-type]

    assert (await scored("**/*.py")).value == 1.0
    assert (await scored("**/*.py", "statistics.py")).value == 0.0, "what the task names is what the tests import"
