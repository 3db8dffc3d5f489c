"""Frozen layers that are cast once change no bit, and follow weights that are loaded later."""

from __future__ import annotations

import copy

import pytest
import torch

from agentrl.config.train import TrainSettings
from agentrl.training.model.frozen import FrozenLinear
from agentrl.training.trainer import Trainer

from .make import llama, make_rows

SETTINGS = TrainSettings(lr=1e-2, minibatch=100, precision="bfloat16", trainable={"top_layers": 1})


def cast_layers(trainer: Trainer) -> int:
    return sum(isinstance(m.__dict__.get("forward"), FrozenLinear) for m in trainer.model.modules())


def made(monkeypatch: pytest.MonkeyPatch, *, cast: bool, **changes: object) -> Trainer:
    with monkeypatch.context() as patch:
        if not cast:
            patch.setattr("agentrl.training.trainer.cast_frozen", lambda model: None)
        return Trainer(llama(**changes), SETTINGS, reference=llama(1, **changes))


@pytest.mark.parametrize("bias", [False, True])
def test_an_update_with_frozen_layers_cast_once_has_the_same_bits(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    rows = make_rows(groups=2, size=4)
    found = []
    for cast in (True, False):
        trainer = made(monkeypatch, cast=cast, attention_bias=bias)
        assert (cast_layers(trainer) > 0) is cast
        metrics = trainer.update(rows, seed=0)
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        found.append((metrics["loss"], metrics["grad_norm"], weights, trainer.logprobs(rows, under="reference")))
    (loss, norm, ours, reference), (plain_loss, plain_norm, plain, plain_reference) = found
    assert (loss, norm) == (plain_loss, plain_norm)
    assert all(torch.equal(value, plain[name]) for name, value in ours.items())
    assert all((one == other).all() for one, other in zip(reference, plain_reference, strict=True))


def test_weights_that_are_loaded_later_are_cast_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows()
    ours, plain = (made(monkeypatch, cast=cast) for cast in (True, False))
    before = ours.logprobs(rows)
    for trainer in (ours, plain):
        trainer.model.load_state_dict(llama(7).state_dict())
    after, expected = ours.logprobs(rows), plain.logprobs(rows)
    assert all((one == other).all() for one, other in zip(after, expected, strict=True))
    assert not all((one == other).all() for one, other in zip(after, before, strict=True))


def test_a_copy_of_the_model_has_layers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(monkeypatch, cast=True)
    twin = copy.deepcopy(trainer.model)
    linear, own = (model.model.layers[0].mlp.up_proj for model in (trainer.model, twin))
    assert own.forward is not linear.forward
    with torch.no_grad():
        own.weight.zero_()
        states = torch.ones(3, 32)
        for autocast in (True, False):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                assert not own(states).any()
                assert linear(states).any()
