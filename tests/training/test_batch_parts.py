"""Parts of a batch: rewards of seats, columns of turns, views of policies, recorded groups, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest

from agentrl.config.agent import PolicySettings
from agentrl.config.credit import CreditSettings
from agentrl.config.recipe import TrainSection
from agentrl.config.train import KlSettings
from agentrl.curriculum import Curriculum, Group
from agentrl.estimators.registry import load_credit
from agentrl.store.run_dir import RunDir
from agentrl.training.batch.builder import BatchBuilder
from agentrl.training.batch.credit_giver import CreditGiver
from agentrl.training.batch.kl_reward import with_kl_reward
from agentrl.training.batch.model_columns import ModelColumns
from agentrl.training.batch.recorded import RecordedGroups
from agentrl.training.batch.recorded_buffer import RecordedBuffer
from agentrl.training.batch.views import own_view, own_views
from agentrl.training.compute_thread import Inline
from agentrl.training.rollout_buffer import RolloutBatch
from agentrl.types.episode import Context, Episode, Turn
from agentrl.types.reporter import Reporter
from agentrl.types.sample import untrained_samples
from tests.store.make import make_episode
from tests.training.make import episode

Record = TypeVar("Record", Episode, Turn)


def played(id: str = "g/e", turns: int = 3) -> Episode:
    made: Episode = episode(id, [1, 2, 3], turns, np.random.default_rng(0))
    return made


def changed(record: Record, **changes: Any) -> Record:
    return msgspec.structs.replace(record, **changes)


def test_a_seat_with_an_outcome_of_its_own_pays_for_its_own_tokens() -> None:
    whole = played()
    seats = {"black": Context(role="player", prompt=[], outcome=0.25), "aside": Context(role="player", prompt=[])}
    place = {1: "black", 2: "aside", 3: "black"}
    turns = [changed(turn, context=place.get(turn.index, turn.context)) for turn in whole.turns]
    seated = changed(whole, turns=turns, contexts=seats)
    samples = untrained_samples(seated)
    policy = [np.where(row.loss_mask, 0.1 * row.token_ids, 0.0).astype(np.float32) for row in samples]
    reference = [np.zeros_like(each) for each in policy]
    settings = KlSettings(coef=0.5, estimator="k1", place="reward")
    (paid,) = with_kl_reward([seated], samples, policy, reference, settings, "outcome").episodes
    shares = [-0.05 * sum(seated.nodes[turn.node].token_ids) for turn in seated.turns]
    assert paid.contexts["black"].outcome == pytest.approx(0.25 + shares[1] + shares[3], rel=1e-6)
    assert paid.reward == pytest.approx(1.0 + shares[0] + shares[2], rel=1e-6)
    assert paid.contexts["aside"].outcome is None, "a seat without an outcome has the reward of the episode"


def test_the_progress_of_a_turn_is_that_of_its_last_token() -> None:
    spoken = played()
    empty = Turn(index=len(spoken.turns), node=0, text="", finish="stop")  # of a fork: its parent sampled the tokens
    silent = changed(spoken, id="g/silent", turns=[empty])
    first = changed(spoken, turns=[*spoken.turns, empty])
    samples = {"g/e": untrained_samples(spoken), "g/silent": []}
    values = [np.arange(len(row.token_ids), dtype=np.float32) for row in samples["g/e"]]
    trainer: Any = None
    columns = ModelColumns({"progress"}, {"progress"}, trainer).of([first, silent], samples, {"progress": values})
    (row,) = samples["g/e"]
    assert columns["progress"]["g/e"].tolist() == [*(float(end - 1) for _, _, end in row.turn_spans), 0.0]
    assert columns["progress"]["g/silent"].tolist() == [0.0]


def test_a_policy_sees_its_own_outcome_if_it_names_one_and_the_episode_is_scored() -> None:
    seats = {"critic": Context(role="critic", prompt=[], policy="critic", trains=True)}
    base = changed(played(), contexts=seats, components={"won": 0.5, "neat": None})
    own = PolicySettings.model_construct(outcome={"won": 2.0})
    unknown = PolicySettings.model_construct(outcome={"won": 2.0, "neat": 1.0})
    plain = PolicySettings.model_construct(outcome=None)
    assert own_view(base, "critic", own).reward == 1.0
    assert own_view(base, "critic", unknown).reward is None
    lower = changed(base, reward=0.75)
    assert own_view(lower, "critic", plain).reward == 0.75
    failed = changed(base, reward=None)
    assert own_view(failed, "critic", own).reward is None, "components of an episode that failed are no outcome"
    assert [each.reward for each in own_views([lower, failed, played()], "critic", plain)] == [0.75]


@pytest.fixture
def recorded(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path / "recorded", {"recipe": {}})
    for group in ("g0", "g1"):
        for member in range(2):
            run.add(make_episode(f"{group}#{member}", group=group, reward=float(member), split="rollout"))
    return run


async def test_recorded_groups_are_handed_out_one_by_one_and_stored(tmp_path: Path, recorded: RunDir) -> None:
    into = RunDir.create(tmp_path / "into", {"recipe": {}})
    buffer = RecordedBuffer(RecordedGroups.of(recorded), into, 2, lambda episode: episode.scored)
    handed: list[RolloutBatch] = []

    async def each(batch: RolloutBatch) -> None:
        handed.append(batch)

    whole = await buffer.next_batch(0, each)
    assert [[group.id for group in batch.groups] for batch in handed] == [["g0"], ["g1"]]
    assert [group.id for group in whole.groups] == ["g0", "g1"]
    assert [[e.id for e in batch.groups[0].episodes] for batch in handed] == [["g0#0", "g0#1"], ["g1#0", "g1#1"]]
    assert {(e.split, e.iteration) for e in into.episodes()} == {("train", 0)}


class Notes(Reporter):
    """Keeps the lines for the user."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


async def test_turn_rewards_that_an_estimator_passes_over_are_named_where_nothing_teaches(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run", {"recipe": {}})
    recipe = TrainSection()
    credit = load_credit(CreditSettings(use="grpo"))
    trainer: Any = None
    giver = CreditGiver(recipe, credit, trainer, Inline())
    made = [played("g/e0"), played("g/e1")]
    rewarded = [changed(e, turns=[changed(turn, reward=float(turn.index)) for turn in e.turns]) for e in made]
    curriculum = Curriculum([], seed=0, iterations=1, episode=run.get)
    reporter = Notes()
    builder = BatchBuilder(recipe, run, reporter, curriculum, credit, giver)
    batch = await builder.build([Group("g", made[0].task, rewarded)], 0)
    assert not any(sample.advantage.any() for sample in batch.samples)
    assert len(reporter.told) == 1
    assert reporter.told[0].startswith("iteration 1: nothing to learn from, every advantage is 0")
    assert ", and grpo does not read the turn rewards (1 groups of 2 scored episodes" in reporter.told[0]
