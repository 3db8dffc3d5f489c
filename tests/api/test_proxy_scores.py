"""What becomes of a recorded session whose scoring fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.api.proxy import Scorer
from agentrl.config.limits import Limits
from agentrl.rewards.components import RewardSet
from agentrl.rollouts.faults.failures import TookTooLong
from agentrl.rollouts.rescorer import Rescorer
from agentrl.sandbox.task_specs import TaskSpecs
from agentrl.simulate.clock import simulated
from agentrl.types.episode import Episode
from agentrl.types.errors import EngineError
from agentrl.types.sandbox import SandboxSpec
from agentrl.types.task import Task
from tests.rewards.make import make_episode, turn

LIMITS = Limits(retries=2, backoff_s=0.0)


async def scored(*failures: Exception) -> tuple[Episode, list[dict[str, Any]]]:
    """A session that is scored by a reward that raises these first."""
    left, told = [*failures], list[dict[str, Any]]()

    def solved(task: Task) -> float:
        if left:
            raise left.pop(0)
        return 0.5

    def no_blobs(sha: str) -> bytes:
        raise KeyError(sha)

    scorer = Scorer(
        RewardSet.from_recipe({"solved": solved}), None, SandboxSpec(), LIMITS, no_blobs, on_failure=told.append
    )
    return await scorer(make_episode(Task.of("t", "?"), turn())), told


@pytest.mark.parametrize(
    ("failures", "status", "reward", "attempts"),
    [
        ([], "done", 0.5, 0),
        ([EngineError("the judge is away")] * 2, "done", 0.5, 2),
        ([EngineError("the judge is away")] * 9, "infra_error", None, 3),
        ([KeyError("tea")], "user_error", None, 1),
    ],
)
async def test_an_outage_is_tried_again_and_no_bug_of_the_user(
    failures: list[Exception], status: str, reward: float | None, attempts: int
) -> None:
    episode, told = await scored(*failures)
    assert (episode.status, episode.reward, len(told)) == (status, reward, attempts)
    assert (episode.error is None) == (status == "done")
    assert [each["final"] for each in told] == [False] * (attempts - 1) + [status != "done"] * bool(attempts)


def test_a_reward_that_never_ends_is_named() -> None:
    """Also when stored episodes are scored again."""

    async def hangs() -> float:
        await asyncio.Event().wait()
        return 1.0

    episode = make_episode(Task.of("t", "?"), turn())
    rewards = RewardSet.from_recipe({"hangs": hangs})
    rescorer = Rescorer(rewards, lambda id: episode, Limits(score_s=5), (), None, TaskSpecs(SandboxSpec()))
    with pytest.raises(TookTooLong, match="scoring an episode took longer than 5 s"):
        simulated(rescorer.play("e"))
