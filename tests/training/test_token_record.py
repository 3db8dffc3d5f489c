"""What an update keeps of the tokens of some groups."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import agentrl
from agentrl.config.train import TrainSettings
from agentrl.store.tokens import TokenRecord
from agentrl.training.trainer import Trainer
from tests.counting import TINY, write

from .make import llama, make_rows


def updated(rows: list, **changes: object) -> list[TokenRecord]:
    trainer = Trainer(llama(), TrainSettings.model_validate({"lr": 1e-2, "minibatch": 100, **changes}))
    trainer.update(rows, seed=0)
    return trainer.recorded


def test_nothing_is_kept_by_default() -> None:
    assert updated(make_rows()) == []


@pytest.mark.parametrize("budget", [60, 10_000])
def test_a_first_step_has_the_plain_log_probabilities_and_ratios_of_1(budget: int) -> None:
    rows = make_rows(groups=2, size=3)
    rows = [dataclasses.replace(row, advantage=row.advantage * (row.group_id != rows[0].group_id)) for row in rows]
    expected = dict(zip(range(len(rows)), Trainer(llama(), TrainSettings()).logprobs(rows), strict=True))
    found = updated(rows, record_tokens=1, token_budget=budget)
    telling = [k for k, row in enumerate(rows) if row.group_id != rows[0].group_id]
    assert [(each.episode_id, each.branch_id) for each in found] == [
        (rows[k].episode_id, rows[k].branch_id) for k in telling
    ], "of the group that has an advantage"
    for k, each in zip(telling, found, strict=True):
        assert [(turn.turn, len(turn.logprob)) for turn in each.turns] == [(t, b - a) for t, a, b in rows[k].turn_spans]
        for turn, (_, start, end) in zip(each.turns, rows[k].turn_spans, strict=True):
            assert turn.logprob == pytest.approx(expected[k][start:end], abs=1e-5)
            assert turn.advantage == pytest.approx(rows[k].advantage[start:end], abs=1e-5)
            assert turn.ratio == [1.0] * (end - start)
            assert min(turn.entropy) > 0
            assert not any(turn.clipped)
    assert len(updated(rows, record_tokens=9)) == len(rows), "no more than there are"


def test_of_several_passes_the_last_one_is_kept() -> None:
    rows = make_rows(groups=2, size=3)
    found = updated(rows, record_tokens=2, epochs=3, loss={"use": "ppo_clip", "clip_low": 0.01, "clip_high": 0.01})
    before = {(row.episode_id, row.branch_id): lp
              for row, lp in zip(rows, Trainer(llama(), TrainSettings()).logprobs(rows), strict=True)}  # fmt: skip
    ratios, clipped = [], []
    for row, each in zip(rows, found, strict=True):
        for turn, (_, start, end) in zip(each.turns, row.turn_spans, strict=True):
            old = before[each.episode_id, each.branch_id][start:end]
            assert turn.ratio == pytest.approx(np.exp(np.array(turn.logprob) - old), rel=1e-3)
            ratios += turn.ratio
            clipped += turn.clipped
    assert max(abs(ratio - 1) for ratio in ratios) > 0.01
    assert any(clipped)
    assert not all(clipped)


@pytest.mark.slow
def test_a_training_keeps_them_and_its_steps_are_the_same(tmp_path: Path) -> None:
    train = "train: {iterations: 2, groups: 2, group_size: 4}\n"
    recipe = write(tmp_path / "counting", TINY + train)
    losses = []
    for kept in (0, 1):
        run = agentrl.train(
            str(recipe), overrides={"train.record_tokens": kept}, out=tmp_path / f"{kept}", reporters=()
        )
        assert run is not None
        losses.append([line["loss"] for line in run.metrics if line["split"] == "train"])
        records = [*run.dir.tokens()]
    assert losses[0] == losses[1]
    assert {each.iteration for each in records} == {1, 2}
    for iteration in (1, 2):
        assert len({each.group_id for each in records if each.iteration == iteration}) == 1
    for each in records:
        episode = run.episode(each.episode_id)
        for turn in each.turns:
            assert len(turn.logprob) == len(episode.nodes[episode.turns[turn.turn].node].token_ids)
