"""Methods of training systems: what is played while the policy learns, and how it is corrected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

import agentrl
from agentrl.config.limits import Limits
from agentrl.config.recipe import Recipe
from agentrl.curriculum import Group
from agentrl.rollouts.scheduler import RolloutScheduler
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.store.run_dir import RunDir
from agentrl.training.loop import TrainingLoop
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.objective import Objective
from agentrl.training.rollout_buffer import OnGroup, RolloutBatch
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from tests.methods.played import group
from tests.methods.proofs import SMALL, Method, Run, warm
from tests.rewards.make import make_episode
from tests.waiting import turns

TASK = Task.of("t", "Go.")


def corrected(recipe: Recipe) -> tuple[list[float], int]:
    """The losses of two tokens, and how old the weights may be. The first was sampled at log-probability -2, was at -1
    when the update began, and is at -0.9 now, with the advantage 1; the second at -4, -1 and -1.5, with -1."""
    assert recipe.train is not None
    proximal, index = [-1.0, -1.0], torch.tensor([0, 1])
    behaviour = torch.tensor([-2.0, -4.0])
    old = behaviour if recipe.train.old_logprobs == "engine" else torch.tensor(proximal)
    batch = TokenBatch(
        logprob=torch.tensor([-0.9, -1.5]), old_logprob=old, behaviour_logprob=behaviour,
        advantage=torch.tensor([1.0, -1.0]), reward=torch.zeros(2), weight=torch.full((2,), 0.5), episode=index,
        group=torch.zeros(2, dtype=torch.long), turn=index,
    )  # fmt: skip
    objective = Objective.of(recipe.train.model_copy(update={"kl": None}), recipe.base)
    return [round(value, 4) for value in objective(batch)[0].tolist()], recipe.train.max_staleness


class Paced:
    """Plays the k-th of eight episodes in 8 - k turns of the event loop."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def expect(self, items: Sequence[EpisodeSpec]) -> None:
        pass

    async def play(self, item: EpisodeSpec) -> Sequence[Episode]:
        await turns(20 * (8 - int(item.id)))
        self.ended.append(item.id)
        return [make_episode(TASK)]


def ended(recipe: Recipe) -> list[str]:
    """The order in which eight episodes end, of which the first is the slowest."""

    async def played() -> list[str]:
        runner = Paced()
        async with RolloutScheduler(runner, concurrency=recipe.concurrency, limits=Limits()) as scheduler:
            specs = [EpisodeSpec(str(k), "g", TASK) for k in range(8)]
            await asyncio.gather(*(scheduler.submit(spec, k) for k, spec in enumerate(specs)))
        return runner.ended

    return asyncio.run(played())


def beside(run: Run) -> list[int]:
    """By episode: how many others of its iteration were at work when it ended."""
    rows = [row for row in run.reader.rows() if row.split == "train"]
    spans = [(row.iteration, row.created_at, row.created_at + row.duration_s) for row in rows]
    return [sum(own == other and began < end < finish for other, began, finish in spans) for own, _, end in spans]


class Pooled(Method):
    """A method whose recipe says how many episodes are in flight: `SMALL` does not."""

    def play(self, folder: Path, profile: str | None = None) -> Run:
        began = warm(self.base, self.warmed or ())
        policy = [f"model={{path: {began}, device: cpu}}", "warm_start=null"]
        overrides = [*(each for each in SMALL if not each.startswith("concurrency")), *policy]
        agentrl.train(self.name, overrides=overrides, profile=profile, out=folder, reporters=())
        return Run(folder, RunDir.read(folder), began)


class Streamed:
    """A buffer whose two groups end one after the other, and a trainer; both tell what happens.

    Attributes:
        told: what happened, in order.
    """

    def __init__(self) -> None:
        self.told: list[str] = []

    async def next_batch(self, version: int, each: OnGroup | None = None) -> RolloutBatch:
        whole = RolloutBatch([], [])
        for id in "ab":
            self.told.append(f"{id} ends")
            one = RolloutBatch([group(id, 0, 1)], [])
            if each is not None:
                await each(one)
            whole += one
        return whole

    async def early(self, of: Group, iteration: int) -> list[str]:
        return [of.task.id]

    async def accumulate(self, samples: list[str], *, progress: float) -> None:
        self.told.append(f"gradient of {samples[0]}")


def streamed(recipe: Recipe) -> list[str]:
    """Returns the events before the update of an iteration of two groups."""
    own: Any = Streamed()
    loop: Any = MagicMock(spec=TrainingLoop, recipe=recipe, buffer=own, batches=own, trainer=own, iteration=0)
    loop._accumulate = partial(TrainingLoop._accumulate, loop)
    loop._streamed = 0.0
    loop._require_scored.side_effect = EOFError  # All groups are there.
    with suppress(EOFError):
        asyncio.run(TrainingLoop.step(loop))
    return list(own.told)


def staleness(run: Run) -> list[Any]:
    """By iteration: how many versions old the trained tokens were, on average."""
    return run.metric("staleness_mean")


METHODS = [
    # Old / behaviour is e and e^3, which is cut to 5; now / old e^0.1, and e^-0.5, which is clipped to 0.8.
    Method("areal", staleness, corrected, ([-3.0042, 4.0], 4)),
    # Now / behaviour is e^1.1 and e^2.5: both are cut to 2, and multiply -A times the log-probability.
    Method("llamarl", staleness, corrected, ([1.8, -3.0], 1)),
    Method(
        "asyncflow",
        lambda run: run.metric("streamed_s"),
        streamed,
        ["a ends", "gradient of a", "b ends", "gradient of b"],
        sized=("train.minibatch=16",),
    ),
    Pooled("envpool", beside, ended, list("76543210")),
]
