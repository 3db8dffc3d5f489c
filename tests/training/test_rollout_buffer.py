"""The rollout buffer after a kill: groups that are whole are not played on, and a failure is not lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from agentrl.config.limits import Limits
from agentrl.config.loader import load_recipe
from agentrl.curriculum import GroupPlan
from agentrl.rollouts.scheduler import RolloutScheduler
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.store.run_dir import RunDir
from agentrl.training.rollout_buffer import DrawnGroup, GroupSource, RolloutBuffer
from agentrl.training.stages.record import StageRecord
from agentrl.training.stages.stage import stages_of
from agentrl.training.staleness import StalenessPolicy
from agentrl.types.episode import Episode
from agentrl.types.errors import EngineError
from agentrl.types.reporter import Reporter
from agentrl.types.task import Task
from tests.counting import TINY, write
from tests.store.make import make_episode
from tests.waiting import turns

TRAIN = "train: {iterations: 2, groups: 1, group_size: 2}\n"


def ended(spec: EpisodeSpec) -> Episode:
    episode = make_episode(spec.id, group=spec.group_id, reward=1.0, split="train", turns=1)
    return msgspec.structs.replace(episode, task=spec.task)


class Runner:
    """Plays episodes at once. Those of the group `breaks` end the run."""

    def __init__(self, breaks: str = "") -> None:
        self.breaks, self.played, self.expected = breaks, list[str](), list[str]()

    def expect(self, items: Sequence[EpisodeSpec]) -> None:
        self.expected += [item.id for item in items]

    async def play(self, item: EpisodeSpec) -> Sequence[Episode]:
        if item.group_id == self.breaks:
            raise EngineError("the server has ended")
        self.played.append(item.id)
        return [ended(item)]


class World:
    """A buffer over a run directory, with groups that were drawn before a kill."""

    def __init__(self, folder: Path, size: int, *, further: int = 0, further_groups: int = 0) -> None:
        recipe = load_recipe(str(write(folder / "counting", TINY + TRAIN)))
        self.run = RunDir.create(folder / "run", {"recipe": {}})
        self.record = StageRecord(self.run, stages_of(recipe)[-1])
        self.source = GroupSource(
            lambda count, iteration: [], lambda groups, rounds: 0, lambda episode: episode.scored, 1, further,
            further_groups,
        )  # fmt: skip
        self.groups = [DrawnGroup(0, k, GroupPlan(Task.of(f"t{k}", "go"), size, 4)) for k in range(1 + further_groups)]

    def buffer(self, runner: Runner) -> tuple[RolloutScheduler[EpisodeSpec], RolloutBuffer]:
        def store(episode: Episode, *forks: Episode) -> None:
            self.run.add(episode)

        scheduler = RolloutScheduler(runner, concurrency=1, limits=Limits(), store=store)
        buffer = RolloutBuffer(scheduler, self.source, StalenessPolicy(0, 2), self.record, Reporter())
        drawn = [group.state_dict() for group in self.groups]
        buffer.load_state_dict({"drawn": 1, "sizes": [[0, 1]], "groups": drawn}, 0)
        return scheduler, buffer


@pytest.mark.parametrize("stored", [1, 2])
async def test_a_group_with_enough_episodes_is_not_played_on_after_a_kill(tmp_path: Path, stored: int) -> None:
    world = World(tmp_path, 2, further=2)
    (group,) = world.groups
    for member in range(stored):
        world.run.add(ended(EpisodeSpec(f"{group.id}#{member}", group.id, group.plan.task)))
    runner = Runner()
    scheduler, buffer = world.buffer(runner)
    async with scheduler:
        buffer.resume()
        batch = await buffer.next_batch(0)
    assert [each.id for each in batch.groups] == [group.id]
    if stored == 2:
        assert runner.played == runner.expected == [], "no sandbox is made ready for the further episodes"
        assert buffer.metrics(batch)["aborted_episodes"] == 0
        assert [episode.id for episode in batch.episodes] == [f"{group.id}#0", f"{group.id}#1"]
    else:
        assert runner.played
        assert len(batch.episodes) >= 2


async def test_a_failure_in_a_group_that_is_not_needed_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, 1, further_groups=1)
    first, second = world.groups
    runner = Runner(breaks=second.id)
    scheduler, buffer = world.buffer(runner)
    async with scheduler:
        buffer.resume()
        await turns()
        assert runner.played == [f"{first.id}#0"]
        with pytest.raises(EngineError, match="the server has ended"):
            await buffer.next_batch(0)
