"""What ends an episode while more than its agent is under way, and what goes up from there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.faults.failures import LimitReached, verdict
from agentrl.simulate.clock import simulated
from agentrl.store import RunDir, check
from agentrl.tools.base import Tool, ToolResult, tool
from agentrl.types.engine import Completion, Sampling
from agentrl.types.episode import Episode
from agentrl.types.errors import EngineError
from tests.rollouts.world import collect, make_context, make_parts, play_one, specs

HERE = "tests.rollouts.test_ends"


def hums(task: Any, rng: Any) -> Any:
    while True:
        yield Say("hm")


class Slow(ScriptedEngine):
    """In the context `a` it is slow."""

    ended: ClassVar[list[str]] = []
    late: ClassVar[list[str]] = []

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        await asyncio.sleep(0.1 * session.endswith("@a"))
        if session in self.ended:
            self.late.append(session)
        return await super().generate(token_ids, sampling, session)

    def end_session(self, session: str) -> None:
        self.ended.append(session)


class Side(Agent):
    """Two contexts side by side, of which one reaches the limit of turns."""

    async def run(self, session: Any) -> None:
        await session.generate()
        a, b = (session.context(name, [{"role": "user", "content": name}], tools=[]) for name in "ab")
        await asyncio.gather(a.generate(), b.generate())


async def patient(task: Any, episode: Episode) -> float:
    await asyncio.sleep(0.3)
    return 1.0


def test_contexts_end_with_the_agent(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": f"{HERE}:Side", "max_turns": 2}, rewards={"r": f"{HERE}:patient"})
    with RunDir.create(tmp_path / "run") as run:
        (episode,) = simulated(collect(make_context(parts, hums, Slow), specs(1), run=run))
    assert (episode.status, episode.stop, len(episode.turns)) == ("truncated", "turns", 1)
    assert [node.kind for node in episode.nodes].count("sampled") == 1, "nothing was sampled after the end"
    assert Slow.late == []
    assert check(tmp_path / "run").ok


class Lingers(Agent):
    """Leaves a task behind that samples later."""

    said: ClassVar[list[str]] = []

    async def run(self, session: Any) -> None:
        await session.generate()
        self.left = asyncio.create_task(self.later(session))
        session.finish("answer", "x")

    async def later(self, session: Any) -> None:
        await asyncio.sleep(0.1)
        try:
            await session.generate()
        except Exception as error:
            self.said.append(str(error))


def test_nothing_begins_after_the_agent(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": f"{HERE}:Lingers"}, rewards={"r": f"{HERE}:patient"})
    episode = simulated(play_one(make_context(parts, hums)))
    assert len(episode.turns) == 1
    assert "the episode has ended" in Lingers.said[0]


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        ([LimitReached("turns")], "truncated"),
        ([EngineError("gone"), LimitReached("turns")], "infra_error"),
        ([EngineError("gone"), KeyError("bug")], "user_error"),
        ([ExceptionGroup("inner", [LimitReached("turns")])], "truncated"),
    ],
)
def test_a_task_group_is_judged_by_the_worst_that_it_holds(raised: list[Exception], status: str) -> None:
    assert verdict(ExceptionGroup("", raised)).status == status


class Pays(Tool):
    """Its reward is no number."""

    @tool
    async def pay(self) -> ToolResult:
        """Pays nonsense."""
        return ToolResult("x", rewards={"r": float("nan")})


def delegates(task: Any, rng: Any, context: str) -> Any:
    yield Say(calls=[("delegate", {"task": "do"}) if context == "main" else ("pay", {})])
    yield Say("the end")


async def test_an_error_of_user_code_in_a_helper_is_one_of_the_episode(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": "delegating_agent"}, tools=[f"{HERE}:Pays"])
    episode = await play_one(make_context(parts, delegates))
    assert episode.status == "user_error"
    assert episode.error is not None
    assert "reward 'r' is nan" in episode.error.message


class Refuses(ScriptedEngine):
    """Does not let go of a session."""

    asked: ClassVar[list[str]] = []

    def end_session(self, session: str) -> None:
        self.asked.append(session)
        raise RuntimeError("no")


class Asks(Agent):
    """Asks a helper."""

    async def run(self, session: Any) -> None:
        await session.generate()
        await session.context("a", [{"role": "user", "content": "?"}], tools=[]).generate()
        session.finish("answer", "x")


async def test_an_engine_that_cannot_end_a_session_ends_the_others(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": f"{HERE}:Asks"})
    episode = await play_one(make_context(parts, hums, Refuses))
    assert (episode.status, episode.answer) == ("done", "x")
    assert Refuses.asked == ["g0#0", "g0#0@a"]
