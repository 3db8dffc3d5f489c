"""The trainer's state between steps: what is added up and dropped, a new optimiser, and adapters that return."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.config.train import TrainSettings
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.loss import Loss
from agentrl.training.trainer import Trainer
from agentrl.types.errors import TrainError
from agentrl.types.sample import TrainingSample
from tests.training.make import SIZES, llama, make_rows


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"lr": 1e-3, "minibatch": 100, **changes})


def weights_of(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def of_group(rows: list[TrainingSample], number: int) -> list[TrainingSample]:
    return [row for row in rows if row.group_id == f"g{number}"]


def test_a_group_without_trained_tokens_adds_nothing() -> None:
    rows, plain, streamed = make_rows(), Trainer(llama(), settings()), Trainer(llama(), settings())
    silent = [dataclasses.replace(row, loss_mask=np.zeros_like(row.loss_mask)) for row in make_rows(groups=1)]
    streamed.accumulate(silent)
    assert streamed.update(rows, seed=0) == plain.update(rows, seed=0), "an update that nothing was streamed for"
    assert torch.equal(weights_of(streamed.model), weights_of(plain.model))


def test_a_streamed_group_with_a_loss_that_is_not_finite_drops_what_was_added_before() -> None:
    breaks = False

    def own(batch: TokenBatch, _: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss = -batch.advantage * batch.logprob * (np.nan if breaks else 1.0)
        return loss, torch.zeros_like(loss, dtype=torch.bool)

    loss = {"use": Loss("own", own, scope="token")}
    rows, plain, streamed = make_rows(), Trainer(llama(), settings(loss=loss)), Trainer(llama(), settings(loss=loss))
    streamed.accumulate(of_group(rows, 0))
    breaks = True
    with pytest.raises(TrainError, match="not finite"):
        streamed.accumulate(of_group(rows, 1))
    breaks = False
    assert streamed.update(rows, seed=0) == plain.update(rows, seed=0), "the whole step, of these samples alone"
    assert torch.equal(weights_of(streamed.model), weights_of(plain.model))


def test_the_loss_of_routers_cannot_be_streamed() -> None:
    torch.manual_seed(0)
    experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts))
    trainer = Trainer(copy.deepcopy(model), settings(router_loss=0.1))
    with pytest.raises(TrainError, match="the loss of routers is a mean over all tokens of a step") as refused:
        trainer.accumulate(make_rows())
    assert (refused.value.place, refused.value.remedy) == ("train.stream", "train.stream=false, or train.router_loss=0")
    allowed = Trainer(model, settings(router_loss=0.0))
    for number in (0, 1):
        allowed.accumulate(of_group(make_rows(), number))
    assert allowed.update(make_rows(), seed=0)["steps"] == 1


def test_a_restarted_trainer_steps_as_a_new_one_on_its_weights() -> None:
    rows, trainer = make_rows(), Trainer(llama(), settings())
    for seed in range(2):
        assert trainer.update(rows, seed)["steps"] == seed + 1
    fresh, going_on = (Trainer(copy.deepcopy(trainer.model), settings()) for _ in range(2))
    going_on.load_state_dict(copy.deepcopy(trainer.state_dict()))
    trainer.restart()
    assert trainer.steps == 0
    assert trainer.update(rows, 7) == fresh.update(rows, 7)
    assert torch.equal(weights_of(trainer.model), weights_of(fresh.model))
    going_on.update(rows, 7)
    assert not torch.equal(weights_of(trainer.model), weights_of(going_on.model)), "its moments are gone"


def test_adapters_that_carry_on_are_the_begin_of_the_average_too() -> None:
    pytest.importorskip("peft", reason="pip install 'agentrl-framework[lora]'")
    own = settings(lora={"rank": 2}, kl={"coef": 0.1, "to": "ema_reference"}, ema_reference={"decay": 0.9}, lr=1e-2)
    rows, earlier = make_rows(), Trainer(llama(), own)
    earlier.update(rows, 0)
    adapters = {name: tensor.clone() for name, tensor in earlier.adapters().items()}
    assert any(tensor.any() for name, tensor in adapters.items() if ".lora_B" in name)
    later = Trainer(llama(), own)
    later.load_adapters(adapters)
    assert all(torch.equal(tensor, adapters[name]) for name, tensor in later.adapters().items())
    average, policy = later.logprobs(rows, under="ema_reference"), later.logprobs(rows)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(average, policy, strict=True))
    assert later.update(rows, 0)["kl_ref"] == pytest.approx(0, abs=1e-9)
