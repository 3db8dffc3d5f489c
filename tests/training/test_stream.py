"""`train.stream`: gradients of groups that are computed while others are played."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import agentrl
from agentrl.config.train import Aggregation, TrainSettings
from agentrl.training.losses.weights import step_divisor, token_weights, weights_within
from agentrl.training.trainer import Trainer
from agentrl.types.errors import AgentRLError, RecipeError, TrainError
from agentrl.types.sample import TrainingSample
from tests.counting import CANARY, CODE, EXACT, HELD, RECIPE, TIMES, TINY, metrics, write
from tests.training.make import llama, make_rows

AGGREGATIONS: tuple[Aggregation, ...] = typing.get_args(Aggregation)
TRAIN = (
    "train: {iterations: 3, groups: 3, group_size: 4, minibatch: 12, lr: 1.0e-3, entropy_bonus: 0.01, stream: true}\n"
)


def settings(**changes: Any) -> TrainSettings:
    norm = {"token_norm": 64.0} if changes.get("aggregation") == "seq_mean_token_sum_norm" else {}
    return TrainSettings(**{"lr": 1e-3, "minibatch": 100, **norm, **changes})


def by_group(rows: Sequence[TrainingSample]) -> list[list[TrainingSample]]:
    return [[row for row in rows if row.group_id == id] for id in dict.fromkeys(row.group_id for row in rows)]


def weights_of(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_weights_of_a_group_are_those_of_the_step_but_for_one_number(aggregation: Aggregation) -> None:
    rows = make_rows(groups=3, size=4)
    whole = token_weights(rows, aggregation, 64.0)
    alone = [each for group in by_group(rows) for each in weights_within(group, aggregation, 64.0)]
    divisor = step_divisor(rows, aggregation)
    assert all(np.allclose(a / divisor, b, rtol=1e-6) for a, b in zip(alone, whole, strict=True))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("more", [{}, {"old_logprobs": "engine"}, {"loss": {"use": "gspo"}}], ids=str)
def test_a_streamed_step_is_the_step(aggregation: Aggregation, more: dict[str, Any]) -> None:
    rows = make_rows(groups=3, size=4)
    own = settings(aggregation=aggregation, entropy_bonus=0.05, max_grad_norm=1e6, **more)
    plain, streamed = llama(), llama()
    expected = Trainer(plain, own).update(rows, seed=0)
    trainer = Trainer(streamed, own)
    for group in by_group(rows):
        trainer.accumulate(group)
    found = trainer.update(rows, seed=0)
    assert found.keys() == expected.keys()
    for name in ("loss", "grad_norm", "entropy", "kl_old", "tokens", "mismatch_mean", "lr", "steps"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-7), name
    # Where a gradient is about AdamW's eps, 1e-8, rounding moves the weight by a hundredth of a step (1e-3).
    assert torch.allclose(weights_of(streamed), weights_of(plain), atol=2e-5)
    assert not torch.equal(weights_of(llama()), weights_of(streamed))


def test_another_advantage_than_in_the_group_alone_takes_no_step() -> None:
    rows = make_rows(groups=2, size=4)
    model = llama()
    trainer = Trainer(model, settings())
    before = weights_of(model).clone()
    for group in by_group(rows):
        trainer.accumulate(group)
    other = [*rows[:-1], dataclasses.replace(rows[-1], advantage=rows[-1].advantage + 1)]
    with pytest.raises(TrainError, match="trains with another advantage than alone in its group"):
        trainer.update(other, seed=0)
    assert torch.equal(weights_of(model), before)
    expected = llama()
    Trainer(expected, settings()).update(rows, seed=0)
    trainer.update(rows, seed=0)  # nothing is left of the groups before
    assert torch.equal(weights_of(model), weights_of(expected))


def test_a_group_that_does_not_train_after_all_is_an_error() -> None:
    rows = make_rows(groups=2, size=4)
    trainer = Trainer(llama(), settings())
    first, second = by_group(rows)
    trainer.accumulate(first)
    trainer.accumulate(second)
    with pytest.raises(TrainError, match="does not train"):
        trainer.update(first, seed=0)


@pytest.mark.slow
def test_the_first_groups_train_while_the_last_one_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "recipe", TINY + TRAIN)
    (folder / "task.py").write_text(CODE + HELD)
    (folder / "recipe.yaml").write_text(RECIPE.replace(":Counter", ":Held") + TINY + TRAIN)
    monkeypatch.chdir(tmp_path)
    hold, real = tmp_path / "hold", Trainer.accumulate
    hold.touch()

    def accumulate(self: Trainer, *given: Any) -> None:
        hold.unlink(missing_ok=True)  # until then only the first group's episodes go on
        real(self, *given)

    monkeypatch.setattr(Trainer, "accumulate", accumulate)
    agentrl.train(folder, overrides=["warm_start=null"], out=tmp_path / "run", reporters=())
    lines = [line for line in metrics(tmp_path / "run") if line["split"] == "train"]
    assert len(lines) == 3
    assert all(line["streamed_s"] > 0 and line["steps"] == k for k, line in enumerate(lines, 1))


@pytest.mark.slow
def test_it_trains_as_without_and_resumes_exactly(tmp_path: Path) -> None:
    folder = write(tmp_path / "recipe", TINY + TRAIN)
    runs = {"whole": [], "plain": ["train.stream=false"], "halves": ["train.iterations=2"]}
    for name, overrides in runs.items():
        agentrl.train(folder, overrides=[*EXACT, *overrides], out=tmp_path / name, reporters=())
    agentrl.train(folder, overrides=EXACT, out=tmp_path / "halves", reporters=())
    timed = (*TIMES, *CANARY, "streamed_s", "mismatch_mean", "mismatch_max")
    whole, plain, halves = (metrics(tmp_path / name, timed) for name in runs)
    assert halves == whole
    for line, other in zip(whole, plain, strict=True):
        for name in ("loss", "grad_norm", "entropy", "success"):
            if name in line:
                assert line[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.minibatch=6"], "minibatch: 12 (groups times group_size) or more"),
        (["train.epochs=2"], "epochs: 1"),
        (["train.max_staleness=1", "train.old_logprobs=engine"], "max_staleness: 0"),
        (["train.record_tokens=1"], "record_tokens: 0"),
        (["curriculum=[dapo]"], "dapo chooses among all groups"),
        (["credit={use: gagpo, decay: 0.5}"], "gagpo remembers values"),
    ],
)
def test_what_reads_all_groups_is_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    folder = write(tmp_path / "recipe", TINY + TRAIN)
    with pytest.raises(RecipeError) as refused:
        agentrl.train(folder, overrides=overrides, out=tmp_path / "run", reporters=())
    assert message in str(refused.value)
    assert "stream" in str(refused.value)


@pytest.mark.slow
def test_credit_that_reads_all_groups_is_an_error_of_the_first_update(tmp_path: Path) -> None:
    folder = write(tmp_path / "recipe", TINY + TRAIN)
    with pytest.raises(AgentRLError, match="its credit depends on other groups"):
        agentrl.train(folder, overrides=["credit={use: reinforce_pp}"], out=tmp_path / "run", reporters=())
