"""Episodes of a process that stands still for a while: the time is nobody's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.tools.base import tool
from agentrl.types.task import Task
from tests.rollouts.world import Bench, FlakyEngine, calls, collect, make_context, make_parts, play_one, specs
from tests.standing import stand_still, standing


class Sleepers(Bench):
    """Bench, and calls in which the process stands still."""

    @tool
    async def stand(self, seconds: float) -> str:
        """Ctrl-Z, and some work."""
        stand_still(seconds)
        await asyncio.sleep(5)
        return "awake"


def standing_calls(task: Any, rng: Any) -> Any:
    for _ in range(2):
        yield Say(calls=[("stand", {"seconds": 5000.0})])
    yield Say(calls=[("end", {"answer": "z"})])


def test_a_process_that_was_stopped_costs_the_episode_no_time(tmp_path: Path) -> None:
    parts = make_parts(
        tmp_path,
        tools=["tests.rollouts.test_stopped_process:Sleepers"],
        limits={"episode_s": 30, "open_s": 5, "score_s": 5, "generate_s": 5},
        rewards={"tool_success": {}},
    )
    episode = standing(play_one(make_context(parts, standing_calls)))
    assert (episode.status, episode.stop, episode.reward) == ("done", "answer", 1.0)
    assert [call.result for call in episode.turns[0].calls] == ["awake"]


async def late(task: Any, episode: Any) -> float:
    """A reward in which the process stands still."""
    stand_still(10_000)
    await asyncio.sleep(1)
    return 1.0


class SlowToOpen(Bench):
    """Stands still while it opens and closes."""

    async def open(self, task: Task, sandbox: Any) -> None:
        stand_still(10_000)
        await asyncio.sleep(1)

    async def close(self) -> None:
        stand_still(10_000)
        await asyncio.sleep(1)


def test_nor_does_it_while_tools_open_and_close_and_rewards_score(tmp_path: Path) -> None:
    failures: list[dict[str, Any]] = []
    parts = make_parts(
        tmp_path,
        tools=["tests.rollouts.test_stopped_process:SlowToOpen"],
        limits={"open_s": 5, "score_s": 5, "close_s": 5},
        rewards={"late": "tests.rollouts.test_stopped_process:late"},
    )
    (episode,) = standing(collect(make_context(parts, calls()), specs(1), failures=failures))
    assert (episode.status, episode.reward, failures) == ("done", 1.0, [])


class StoppedEngine(FlakyEngine):
    """The process stands still while it answers."""

    async def generate(self, token_ids: Any, sampling: Any, session: str) -> Any:
        stand_still(10_000)
        await asyncio.sleep(1)
        return await super().generate(token_ids, sampling, session)


def test_nor_does_it_while_the_engine_answers(tmp_path: Path) -> None:
    failures: list[dict[str, Any]] = []
    context = make_context(make_parts(tmp_path, limits={"generate_s": 5, "retries": 0}), calls(), StoppedEngine)
    (episode,) = standing(collect(context, specs(1), failures=failures))
    assert (episode.status, failures) == ("done", [])
