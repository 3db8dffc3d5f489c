"""Programs of tools that end, do not start, or no longer answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.simulate.clock import simulated
from agentrl.tools.base import tool
from agentrl.types.errors import EngineError, ToolServerEnded
from agentrl.types.task import Task
from tests.rollouts.world import Bench, FlakyEngine, calls, collect, make_context, make_parts, play_one, specs


class Served(Bench):
    """Bench with calls that end the program behind it."""

    ends: ClassVar[int] = 0
    """The calls of `die` that do so, from the first on."""

    @tool
    async def die(self) -> str:
        """Ends the program, or says that it lives."""
        if Served.ends > 0:
            Served.ends -= 1
            raise ToolServerEnded("the program ended")
        return "alive"

    @tool
    async def die_together(self) -> str:
        """Ends it in a task of a group."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.die())
        return "alive"


@pytest.mark.parametrize("call", ["die", "die_together"])
@pytest.mark.parametrize(
    ("ends", "retries", "ended", "attempts"),
    [
        (0, 2, ("done", "answer", 1.0), 0),
        (1, 2, ("done", "answer", 1.0), 1),
        (2, 2, ("truncated", "tool_broken", 0.0), 1),
        (99, 9, ("truncated", "tool_broken", 0.0), 1),
        (99, 0, ("infra_error", "", None), 0),
    ],
)
async def test_a_tool_s_program_is_started_again_and_who_ends_it_again_is_scored(
    tmp_path: Path, ends: int, retries: int, ended: tuple[str, str, float | None], attempts: int, call: str
) -> None:
    Served.ends = ends
    parts = make_parts(
        tmp_path,
        tools=["tests.rollouts.test_tool_programs:Served"],
        rewards={"found": "tests.rollouts.world:found"},
        limits={"backoff_s": 0.0, "retries": retries},
    )
    failures: list[dict[str, Any]] = []
    (episode,) = await collect(make_context(parts, calls(call)), specs(1), failures=failures)
    assert (episode.status, episode.stop, episode.reward, episode.attempt) == (*ended, attempts)
    assert len(failures) == (attempts or ended[0] == "infra_error")


class Silent(Served):
    """Its program does not answer after calls that ran out of time, `ends` times."""

    async def check_answers(self) -> None:
        await self.die()


@pytest.mark.parametrize("limit", [{}, {"episode_s": 30}], ids=["call", "episode"])
@pytest.mark.parametrize(("ends", "attempt", "stop"), [(0, 0, ""), (1, 1, ""), (2, 1, "tool_broken")])
def test_a_program_that_does_not_answer_after_a_time_limit_counts_as_ended(
    tmp_path: Path, limit: dict[str, Any], ends: int, attempt: int, stop: str
) -> None:
    Served.ends = ends
    parts = make_parts(
        tmp_path, tools=["tests.rollouts.test_tool_programs:Silent"], limits={"backoff_s": 0.0, "retries": 2, **limit}
    )
    (episode,) = simulated(collect(make_context(parts, calls("hang")), specs(1)))
    assert (episode.attempt, episode.stop) == (attempt, stop or ("wall" if limit else "answer"))


class BreaksAtFirst(Served):
    """Its program does not start the first time."""

    starts: ClassVar[int] = 0

    async def open(self, task: Task, sandbox: Any) -> None:
        await super().open(task, sandbox)
        BreaksAtFirst.starts += 1
        if BreaksAtFirst.starts == 1:
            raise ToolServerEnded("the program did not start")


async def test_a_program_that_does_not_start_casts_no_suspicion(tmp_path: Path) -> None:
    BreaksAtFirst.starts, Served.ends = 0, 1
    parts = make_parts(
        tmp_path, tools=["tests.rollouts.test_tool_programs:BreaksAtFirst"], limits={"backoff_s": 0.0, "retries": 2}
    )
    episode = await play_one(make_context(parts, calls("die")))
    assert (episode.status, episode.attempt) == ("done", 2)


async def test_other_outages_between_leave_the_suspicion(tmp_path: Path) -> None:
    """Ended, a broken engine, and ended again: the agent's doing; engines that break off are not."""

    class Between(FlakyEngine):
        asked: ClassVar[int] = 0

        async def generate(self, token_ids: Any, sampling: Any, session: str) -> Any:
            Between.asked += 1
            if Between.asked == 2:
                raise EngineError("connection reset")
            return await super().generate(token_ids, sampling, session)

    Served.ends = 2
    parts = make_parts(
        tmp_path, tools=["tests.rollouts.test_tool_programs:Served"], limits={"backoff_s": 0.0, "retries": 2}
    )
    episode = await play_one(make_context(parts, calls("die"), Between))
    assert (episode.status, episode.stop, episode.attempt) == ("truncated", "tool_broken", 2)
