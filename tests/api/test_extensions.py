"""A tool, an estimator and a sandbox backend from outside, in a file beside the recipe.

Engines: tests/engines/test_extension.py. Trainers: tests/training/test_own_trainer.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentrl
from tests.counting import TINY, write

TOOL = '''
from agentrl import Say, Tool, tool

class Doubles(Tool):
    @tool
    def double(self, number: int) -> str:
        """Doubles a number."""
        return str(FACTOR * number)

def asks(task, rng):
    (observed,) = yield Say(calls=[("double", {"number": 21})])
    yield Say(observed["content"])

def right(episode):
    return float("42" in (episode.answer or ""))
'''


@pytest.mark.parametrize(("factor", "reward"), [(2, 1.0), (3, 0.0)])
def test_a_tool(tmp_path: Path, factor: int, reward: float) -> None:
    folder = write(tmp_path / "counting")
    (folder / "doubles.py").write_text(TOOL.replace("FACTOR", str(factor)))
    recipe = "tools=[./doubles.py:Doubles]", "rewards={right: ./doubles.py:right}", "scripts={asks: ./doubles.py:asks}"
    run = agentrl.rollout(str(folder), 2, overrides=recipe, script="asks", out=tmp_path / "run", reporters=())
    assert [row.reward for row in run.episodes] == [reward] * 2


ESTIMATOR = """
def early(table, scale: float = 1.0):
    return scale * (table.returns(0.9) - table.returns(0.9).mean())  # one number a turn

def letters(episode):
    return float(len({letter for turn in episode.turns for letter in turn.text}))
"""


@pytest.mark.slow
def test_an_estimator(tmp_path: Path) -> None:
    folder = write(tmp_path / "counting", TINY + "train: {iterations: 1, groups: 2, group_size: 4}\n")
    (folder / "early.py").write_text(ESTIMATOR)

    def grad_norm(scale: float) -> float:
        sets = [f"credit={{use: ./early.py:early, scale: {scale}}}", "rewards={letters: ./early.py:letters}"]
        run: Any = agentrl.train(str(folder), overrides=sets, out=tmp_path / str(scale), reporters=())
        return float(run.metrics[-1]["grad_norm"])

    assert grad_norm(3.0) == pytest.approx(3 * grad_norm(1.0), rel=1e-4)
    assert grad_norm(0.0) == 0


BACKEND = """
from agentrl import Say
from agentrl.sandbox.namespace.backend import NamespaceBackend

class Furnished(NamespaceBackend):
    name = "furnished"

    async def create(self, spec, *, label=""):
        sandbox = await super().create(spec, label=label)
        await sandbox.write("key.txt", b"KEY")
        return sandbox

def reads(task, rng):
    (observed,) = yield Say(calls=[("shell", {"command": "cat key.txt"})])
    yield Say(observed["content"])

def right(episode):
    return float("42" in (episode.answer or ""))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("key", "reward"), [("42", 1.0), ("41", 0.0)])
def test_a_sandbox_backend(tmp_path: Path, key: str, reward: float) -> None:
    folder = write(tmp_path / "counting")
    (folder / "furnished.py").write_text(BACKEND.replace("KEY", key))
    sets = ["sandbox=./furnished.py:Furnished", "tools=[shell]", "scripts={reads: ./furnished.py:reads}"]
    sets += ["rewards={right: ./furnished.py:right}"]
    run = agentrl.rollout(str(folder), 2, overrides=sets, script="reads", out=tmp_path / "run", reporters=())
    assert [row.reward for row in run.episodes] == [reward] * 2
