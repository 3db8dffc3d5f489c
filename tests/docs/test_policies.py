"""The page docs/policies.md, executed: a customer dialogue, whose user is a model behind an API, or a script."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.store.run_dir import RunDir
from agentrl.types.sample import training_samples
from tests.command import agentrl, sets
from tests.docs import lines_of
from tests.engines.http_server import serving
from tests.engines.vllm_world import small_model
from tests.sound import assert_sound

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"

SCRIPTS = """
from agentrl import Say

def customer(task, rng, tools):
    assert tools == []  # those of the policy are not for the user
    heard = yield Say(f"I want to {task.data['want']}: {task.data['order']}.")
    assert [message["role"] for message in heard] == ["user"]
    yield Say("Thanks ###STOP###")

def clerk(task, rng):
    yield Say(calls=[("cancel", {"order": task.data["order"]})])
    yield Say("Your order is cancelled.")
"""


def block(kind: str) -> str:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the page describes, and scripts."""
    for name, kind in {"shop.py": "python", "recipe.yaml": "yaml", "tasks.jsonl": "json"}.items():
        (tmp_path / name).write_text(block(kind))
    (tmp_path / "scripts.py").write_text(SCRIPTS)
    return tmp_path


SCRIPTED = [
    "--set", "scripts={customer: './scripts.py:customer', clerk: './scripts.py:clerk'}",
    "--set", "policies={user: {script: customer}}",
]  # fmt: skip


def test_the_dialogue_is_short() -> None:
    assert sum(lines_of(block(kind)) for kind in ("yaml", "python")) <= 45


@pytest.mark.slow
async def test_the_dialogue_of_the_page_is_played_with_a_model_as_the_user(folder: Path) -> None:
    async def customer(path: str, body: Any) -> Any:
        """The model of the page's API: it wants what its system message says, until something is cancelled."""
        if body is None:
            return {"data": []}
        heard = [message["content"] for message in body["messages"]]
        said = "Thanks ###STOP###" if "Your order is cancelled." in heard else f"I want to say: {heard[0][-70:]}"
        return {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}

    async with serving(customer) as url:
        (folder / "recipe.yaml").write_text(block("yaml").replace("http://127.0.0.1:8000", url))
        played = ("rollout", "recipe.yaml", "--script", "clerk", "--n", "4", *SCRIPTED[:2])
        await asyncio.to_thread(agentrl, *played, cwd=folder)
    assert_sound(folder / "runs/shop-clerk")
    with RunDir.read(folder / "runs" / "shop-clerk") as run:
        episodes = list(run.episodes())
    for episode in episodes:
        assert (episode.status, episode.reward, episode.answer) == ("done", 1.0, "Your order is cancelled.")
        assert [turn.context for turn in episode.turns] == ["user", "main", "main", "user"]
        assert episode.prompt[-1]["content"].startswith("I want to ")
        assert episode.contexts["user"].policy == "user"
        assert episode.task.data["order"] in str(episode.contexts["user"].prompt[0]["content"])


@pytest.mark.slow
def test_a_model_trains_with_the_user_of_the_page(folder: Path) -> None:
    """Two steps, with a tiny model, and a reward that tells its replies apart."""
    small_model(folder / "model")
    (folder / "length.py").write_text("def length(episode):\n    return len(episode.turns[1].text) / 100\n")
    small = ["model={path: model}", "rewards.length=./length.py:length", "sampling.max_tokens=8", "eval.episodes=2"]
    sizes = ["train.iterations=2", "train.groups=2", "train.group_size=3", "credit=returns"]
    agentrl("train", "recipe.yaml", *SCRIPTED, *sets(*small, *sizes), cwd=folder)
    assert_sound(folder / "runs/shop")
    with RunDir.read(folder / "runs" / "shop") as run:
        lines = [line for line in run.metrics() if line["split"] == "train"]
        episodes = list(run.episodes(split="train"))
        credits = [run.credit(episode.id) for episode in episodes]
    assert [line["iteration"] for line in lines] == [1, 2]
    assert all(line["grad_norm"] > 0 and line["turns/user"] == 2 for line in lines)
    for episode, credit in zip(episodes, credits, strict=True):
        voiced = [turn.index for turn in episode.turns if turn.context == "user"]
        trained = {turn for row in training_samples(episode, [1.0] * 9) for turn, _, _ in row.turn_spans}
        assert trained == {turn.index for turn in episode.turns} - set(voiced)
        assert credit is not None
        assert len(credit.turn_advantages) == len(episode.turns)
        assert all(credit.turn_advantages[index] == 0 for index in voiced)
