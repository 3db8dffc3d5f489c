"""What episodes leave behind: nothing that waits for the garbage collector, which looks rarely while they run."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines.scripted import Say
from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.attempt import Attempt
from agentrl.rollouts.conversation.conversation import Conversation
from agentrl.rollouts.conversation.state import EpisodeState
from agentrl.store import RunDir
from agentrl.types.recording import Recording
from tests.rollouts.world import collect, make_context, make_parts, specs

pytestmark = pytest.mark.slow

HERE = "tests.rollouts.test_garbage"
HELD = (Attempt, Conversation, EpisodeState, Recording)


def held() -> Counter[str]:
    """What there is of episodes."""
    return Counter(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), HELD))


def echoes(task: Any, rng: Any) -> Any:
    for text in "abc":
        yield Say(calls=[("echo", {"text": text})])
    yield Say("Done.")


class Parted(ToolAgent):
    """Has another context beside the main one."""

    async def run(self, session: Any) -> None:
        part = session.context("part")
        part.begin([{"role": "user", "content": "Go."}])
        await part.run_tools(await part.generate())
        await super().run(session)


class Forks(ToolAgent):
    """Forks, and forks the fork after its end."""

    forks = 2

    async def run(self, session: Any) -> None:
        await super().run(session)
        async with session.fork(1) as fork:
            await ToolAgent.run(self, fork)
        async with fork.fork(2) as last:
            await ToolAgent.run(self, last)


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"agent": {"max_turns": 2}},
        {"agent": f"{HERE}:Parted"},
        {"agent": f"{HERE}:Forks", "tools": ["tests.rollouts.world:Bench"]},
    ],
    ids=["done", "truncated", "contexts", "forks"],
)
async def test_an_episode_is_free_when_it_ends(tmp_path: Path, recipe: dict[str, Any]) -> None:
    context = make_context(make_parts(tmp_path, **recipe), echoes)
    rollouts = [replace(each, split="rollout") for each in specs(4)]
    gc.collect()
    gc.disable()
    before = held()  # of other tests
    try:
        with RunDir.create(tmp_path / "run") as run:
            await collect(context, rollouts, run=run)
            assert held() == before
            assert len(list(run.episodes())) >= 4
    finally:
        gc.enable()
