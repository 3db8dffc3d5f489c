"""Losses as records: where their code is, what is refused as a loss, and weights of a step without trained tokens."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config.train import Aggregation, LossSettings
from agentrl.training.losses.loss import Loss
from agentrl.training.losses.registry import LOSSES, load_loss
from agentrl.training.losses.weights import step_divisor, token_weights, weights_within
from agentrl.types.errors import RecipeError
from tests.training.make import make_rows


def mine(batch: int, settings: int) -> tuple[int, int]:
    return batch * settings, batch


def test_a_loss_record_is_called_as_its_function_is() -> None:
    loss = Loss("mine", mine)
    assert loss(3, 4) == mine(3, 4) == (12, 3)
    assert loss.code == f"{__name__}:mine"


def test_a_built_in_loss_names_the_place_of_its_function() -> None:
    loss, _ = load_loss(LossSettings(use="gspo"))
    module, _, name = loss.code.partition(":")
    function: Any = loss.resolve()
    assert (module, name) == (function.__module__, function.__name__)
    assert module.startswith("agentrl.training.losses.")


def test_what_is_no_loss_is_refused_with_what_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("mine = 3\n\ndef good(batch):\n    return batch, batch\n")
    good, _ = load_loss(LossSettings(use="./own.py:good"), tmp_path)
    assert (good.name, good(5, good.settings())) == ("good", (5, 5))
    with pytest.raises(RecipeError) as refused:
        load_loss(LossSettings(use="./own.py:mine"), tmp_path)
    assert refused.value.place == "train.loss"
    assert f"./own.py:mine is a int, not {LOSSES.wanted}" in str(refused.value)
    assert "of that kind ./own.py defines: good" in str(refused.value)


@pytest.mark.parametrize("aggregation", typing.get_args(Aggregation))
def test_a_step_without_trained_tokens_weighs_nothing(aggregation: Aggregation) -> None:
    rows = [dataclasses.replace(row, loss_mask=np.zeros_like(row.loss_mask)) for row in make_rows()]
    for weigh in (token_weights, weights_within):
        weights = weigh(rows, aggregation, 64.0)
        assert [len(each) for each in weights] == [len(row.token_ids) for row in rows]
        assert not any(each.any() for each in weights)
    assert step_divisor(rows, aggregation) == 1
