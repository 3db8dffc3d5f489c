"""Tests and code under test in two containers; `tests/rewards/test_code_cheats.py` tries more, in namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agentrl.rewards import RewardSet, Score
from agentrl.types.sandbox import SandboxSpec
from agentrl.types.task import Task
from tests.rewards.cheats import CHEATS
from tests.rewards.honest import HONEST
from tests.rewards.make import make_episode

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from agentrl.sandbox.docker.backend import DockerBackend

CHECK = "from solution import double\nassert double(2) == 4\nassert double('a') == 'aa'\n"


async def score(backend: DockerBackend, answer: str, check: str) -> Score:
    tests: dict[str, Any] = {"files": {"check.py": check}, "command": "python3 check.py"}
    task = Task.of("t", "", tests=tests)
    rewards = RewardSet.from_recipe({"code_tests": {"timeout_s": 60.0}})
    return await rewards.score(task, make_episode(task, answer=answer), None, lambda: backend.create(SandboxSpec()))


@pytest.mark.parametrize("name", ["os._exit", "atexit", "thread", "secret word", "equal to everything", "kill all"])
async def test_no_trick_is_taken_for_a_solution(docker_backend: DockerBackend, name: str) -> None:
    assert (await score(docker_backend, CHEATS[name], CHECK)).total == 0.0


@pytest.mark.parametrize("name", ["classes", "exceptions", "generators", "functions passed in", "as a program"])
async def test_a_right_solution_passes(docker_backend: DockerBackend, name: str) -> None:
    scored = await score(docker_backend, *HONEST[name])
    assert scored.total == 1.0, scored.notes


async def test_the_agents_programs_are_ended_before_a_check(docker_backend: DockerBackend) -> None:
    task = Task.of("t", "", state=[{"command": "! grep -q MARK[E]D /proc/[0-9]*/cmdline", "exit": 0}])
    async with await docker_backend.create(SandboxSpec()) as sandbox:
        shell = await sandbox.session()
        await shell.run("sh -c \"trap '' TERM; while true; do touch a; done # MARKED\" > /dev/null 2>&1 &")
        await shell.run("until test -e a && grep -q MARK[E]D /proc/[0-9]*/cmdline; do sleep 0.01; done")
        scored = await RewardSet.from_recipe({"state_check": {}}).score(task, make_episode(task), sandbox)
    assert scored.total == 1.0, scored.notes
