"""Environments of TRL's `environment_factory`, played as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.api.recipes import given_recipe
from agentrl.integrations.trl_environment import _shown
from agentrl.rollouts.builder import build
from agentrl.store.run_dir import RunDir
from agentrl.tools.base import ToolResult
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from tests.images import png

# Nothing here imports agentrl but the script.
CODE = '''
from agentrl import Say

class Lock:
    """A lock of three digits."""

    def __init__(self):
        self.opened = 0

    def reset(self, code, **row):
        self.code, self.reward, self.row = code, 0.0, sorted(row)
        return f"The lock has {len(code)} digits."

    def guess(self, digits: str, times: int = 1) -> str:
        """
        Try digits.

        Args:
            digits: The digits, in order.
            times: How often.

        Returns:
            What the lock does.
        """
        if self.reward:
            raise ValueError("It is open.")
        right = sum(a == b for a, b in zip(digits, self.code))
        self.reward = float(right == len(self.code))
        return f"{right} are right."

    async def open(self) -> dict:
        """Look at the lock."""
        return {"open": bool(self.reward), "row": self.row}

    def _secret(self):
        return self.code

class Scored(Lock):
    async def get_reward(self):
        return 0.25 + self.reward / 2

class Bare:
    def reset(self, **row): ...
    def look(self) -> str:
        "Look."
        return ""

class NoReset:
    def look(self) -> str: ...

class NoTool:
    def reset(self): ...

def make():
    return Lock()

def oracle(task, rng):
    yield Say(calls=[("open", {})])
    yield Say(calls=[("guess", {"digits": "000"}), ("guess", {"digits": task.data["code"], "times": 2})])
    yield Say(calls=[("guess", {"digits": "1"})])
    yield Say("Done.")
'''
RECIPE = """\
name: lock
tasks: {jsonl: ./rows.jsonl, prompt: "Open it."}
tools: [{trl_environment: {factory: "./task.py:Lock"}}]
rewards: {trl_environment: {}}
scripts: {oracle: ./task.py:oracle}
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "rows.jsonl").write_text('{"code": "417", "level": 2}\n')
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def played(folder: Path, factory: str = "Lock") -> Episode:
    tools = [{"trl_environment": {"factory": f"./task.py:{factory}"}}]
    out = folder / factory
    agentrl.rollout(folder, 1, script="oracle", out=out, overrides={"tools": tools}, reporters=())
    with RunDir.read(out) as run:
        (episode,) = run.episodes()
    return episode


@pytest.mark.parametrize(("factory", "reward"), [("Lock", 1.0), ("make", 1.0), ("Scored", 0.75)])
def test_a_class_is_played_as_it_is(lock: Path, factory: str, reward: float) -> None:
    episode = played(lock, factory)
    assert episode.error is None
    assert [message["content"] for message in episode.prompt] == ["Open it.", "The lock has 3 digits."]
    results = [call.result for turn in episode.turns for call in turn.calls]
    assert results[0] == '{"open": false, "row": ["level", "prompt"]}'
    assert results[1:3] == ["0 are right.", "3 are right."]
    assert results[3].endswith("It is open.")
    assert episode.turns[2].calls[0].outcome == "error", "TRL shows exceptions to the model"
    assert episode.reward == reward


def definitions(folder: Path) -> dict[str, Any]:
    found = build(given_recipe(folder)).definitions
    return {each["function"]["name"]: each["function"] for each in found}


def test_its_docstrings_and_hints_describe_the_tools(lock: Path) -> None:
    found = definitions(lock)
    assert [*found] == ["guess", "open"]
    assert found["guess"]["description"].startswith("Try digits.")
    properties = found["guess"]["parameters"]["properties"]
    assert properties["digits"]["description"] == "The digits, in order."
    assert (properties["times"]["type"], found["guess"]["parameters"]["required"]) == ("integer", ["digits"])


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("./task.py:NoReset", "NoReset has no method reset"),
        ("./task.py:NoTool", "NoTool has no public method"),
        ("Lock", "factory: input should be callable, found 'Lock'"),
    ],
)
def test_what_is_no_environment_is_named(lock: Path, factory: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=rf"tools\..*{said}"):
        build(given_recipe(lock, {"tools": [{"trl_environment": {"factory": factory}}]}))


def test_an_environment_without_a_reward_is_named(lock: Path) -> None:
    text = (lock / "task.py").read_text().replace('("open", {})', '("look", {})')
    (lock / "task.py").write_text(text)
    episode = played(lock, "Bare")
    assert episode.error is not None
    assert "Bare has no get_reward and no reward" in episode.error.message
    assert episode.reward is None


async def test_a_list_of_texts_and_images_shows_both() -> None:
    """TRL's own example with a camera returns such a list."""
    parts = [{"type": "image", "image": png(4, 4)}, {"type": "text", "text": "a road"}]
    assert _shown(parts) == ToolResult("a road", images=[png(4, 4)])
    for other in ([], "text", [1, 2], [{"type": "audio"}], ["a", {"type": "text", "text": "b"}], {"type": "text"}):
        assert _shown(other) is other
