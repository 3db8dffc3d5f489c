"""Rewards that need a sandbox, in real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.errors import RecipeError, TaskError
from agentrl.rewards import RewardError, RewardSet
from agentrl.rewards.code import code_tests
from agentrl.rewards.state import state_check
from agentrl.sandbox.contract import SandboxSpec
from agentrl.sandbox.namespace import NamespaceBackend
from agentrl.task import Task
from tests.rewards.make import make_episode


@pytest.fixture
async def backend() -> AsyncIterator[NamespaceBackend]:
    backend = NamespaceBackend()
    yield backend
    await backend.close()


DOUBLE = "def double(x):\n    return 2 * x\n"
PROGRAM = "print(int(input()) * 2)\n"


@pytest.mark.parametrize(("answer", "tests", "partial", "passed"), [
    (f"Here:\n```python\n{DOUBLE}```", ["assert double(2) == 4", "assert double('a') == 'aa'"], False, 1.0),
    (DOUBLE, ["assert double(2) == 4", "assert double(2) == 5"], False, 0.0),
    (DOUBLE, ["assert double(2) == 4", "assert double(2) == 5"], True, 0.5),
    ("import sys; sys.exit(0)", ["assert False"], False, 0.0),
    ("import os; os._exit(0)", ["assert False"], False, 0.0),
    ("def double(", ["assert double(2) == 4"], True, 0.0),
    (PROGRAM, [{"input": "2", "output": "4\n"}, {"input": "5\n", "output": "10"}], False, 1.0),
    (PROGRAM, [{"input": "2", "output": "5"}], False, 0.0),
    ("while True: pass", [{"input": "2", "output": "5"}], False, 0.0),
    (DOUBLE, {"files": {"check.py": "import solution; assert solution.double(1) == 2"}, "command": "python3 check.py"},
     False, 1.0),
    (None, ["assert True"], False, 0.0),
])  # fmt: skip
async def test_code_of_an_answer(backend, answer, tests, partial, passed):
    task = Task.of("t", "", tests=tests)
    async with await backend.create(SandboxSpec()) as fresh:
        found = await code_tests(task, make_episode(task, answer=answer), fresh, partial=partial, timeout_s=2.0)
    assert (found if answer is None else found.value) == passed


async def test_files_are_taken_from_the_agent_and_its_tests_are_not(backend):
    """The agent patched the test and the interpreter's search path; neither comes along."""
    tests = {"files": {"test_it.py": "from it import double\nassert double(2) == 4\n"}, "command": "python3 test_it.py"}
    task = Task.of("t", "", tests=tests)
    rewards = RewardSet.from_recipe({"code_tests": {"files": ["it.py", "test_it.py"]}})
    assert rewards.needs_fresh_sandbox
    assert not rewards.needs_sandbox
    assert rewards.components[0].costs == ("sandbox",)
    for code, passed in (("def double(x): return 2 * x", 1.0), ("def double(x): return 3", 0.0)):
        async with await backend.create(SandboxSpec()) as agents:
            await agents.write("it.py", code)
            await agents.write("test_it.py", "print('all good')")
            await agents.write("random.py", "raise SystemExit(0)")
            scored = await rewards.score(
                task, make_episode(task), agents, lambda: backend.create(SandboxSpec(), label="verify")
            )
        assert scored.components == {"code_tests": passed}
    assert not backend._alive, "the component's sandbox was closed"


async def test_a_file_that_is_not_there_is_a_failure_of_the_agent(backend):
    task = Task.of("t", "", tests=["assert True"])
    async with await backend.create(SandboxSpec()) as one, await backend.create(SandboxSpec()) as other:
        found = await code_tests(task, make_episode(task), one, other, files=["it.py"])
        assert (found.value, found.note) == (0.0, "the agent left no it.py")
        with pytest.raises(RecipeError, match="there is none"):
            await code_tests(task, make_episode(task), one, files=["it.py"])
        bad = Task.of("t3", "", tests=[{"input": "2"}])
        with pytest.raises(TaskError, match="task t3: tests 'tests' are"):
            await code_tests(bad, make_episode(bad, answer="x"), one)


async def test_no_backend_for_a_fresh_sandbox():
    task = Task.of("t", "", tests=["assert True"])
    with pytest.raises(RewardError, match="no sandbox backend"):
        await RewardSet.from_recipe({"code_tests": {}}).score(task, make_episode(task, answer="x"))


async def test_state(backend):
    checks = [
        {"file": "a.txt", "equals": "hello"},
        {"file": "a.txt", "contains": "ell", "matches": "^h"},
        {"file": "b.txt", "absent": True},
        {"command": "cat a.txt", "stdout": "hello"},
    ]
    async with await backend.create(SandboxSpec()) as sandbox:
        await sandbox.write("a.txt", "hello\n")
        assert (await state_check(Task.of("t", "", state=checks), sandbox)).value == 1.0
        wrong = [
            *checks,
            {"file": "c.txt", "equals": "x"},
            {"command": "false", "exit": 0},
            {"file": "a.txt", "absent": True},
        ]
        found = await state_check(Task.of("t", "", state=wrong), sandbox, partial=True)
        assert found.value == pytest.approx(4 / 7)
        assert "there is no c.txt" in found.note
        assert (await state_check(Task.of("t", "", state=wrong), sandbox)).value == 0.0
        for bad in (None, [], [{"file": "a"}], ["a"]):
            with pytest.raises(TaskError, match="task t:"):
                await state_check(Task.of("t", "", state=bad), sandbox)
