"""What trains of a model that sees, and what trains beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.config.train import TrainSettings
from agentrl.models.load import LoadedModel
from agentrl.training.auxiliary.critic import Critic
from agentrl.training.auxiliary.reward_model import ImplicitRewardModel
from agentrl.training.model.vision_inputs import vision_of
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.spmd import driver_trainer
from agentrl.training.trainer import Trainer
from agentrl.types.errors import TrainError
from agentrl.types.sample import TrainingSample
from tests.training.make import llama
from tests.vision.episodes import FILES, gradients, played, trainer_of, with_advantages
from tests.vision.families import FAMILIES

KINDS = ("qwen3_vl", "llava", "smolvlm")


@pytest.fixture(scope="module", params=KINDS)
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return FAMILIES[request.param]()


def of_tower(loaded: LoadedModel, name: str) -> bool:
    assert loaded.processor is not None
    return bool(set(name.split(".")) & set(loaded.processor.family.modules))


def counted(trainer: Trainer) -> list[int]:
    """How many images each pass of the tower takes."""
    found: list[int] = []
    sight: Any = trainer.policy.sight
    tower = sight.tower
    sight.tower = lambda images: found.append(len(images)) or tower(images)
    return found


@pytest.mark.slow
async def test_a_frozen_tower_stays_and_its_backward_pass_is_saved(loaded: LoadedModel) -> None:
    samples = with_advantages(await played(loaded))
    whole = trainer_of(loaded, max_grad_norm=1e9, patch_budget=1)
    frozen = trainer_of(loaded, max_grad_norm=1e9, patch_budget=1, freeze_vision_tower=True, lr=1e-2)
    images = len(looked_at(frozen, samples))
    looked = {"whole": counted(whole), "frozen": counted(frozen)}
    all_of, rest = gradients(whole, samples), gradients(frozen, samples)
    assert all(of_tower(loaded, name) for name in all_of.keys() - rest.keys())
    assert not any(of_tower(loaded, name) for name in rest)
    assert max((rest[name] - all_of[name]).abs().max().item() for name in rest) < 1e-6
    # With one image a pass, each is forwarded again for the gradient, unless there is none.
    assert (sum(looked["whole"]), sum(looked["frozen"])) == (2 * images, images)
    before = {name: tensor.clone() for name, tensor in frozen.model.state_dict().items()}
    frozen.update(samples, 0)
    moved = {name for name, tensor in frozen.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved
    assert not any(of_tower(loaded, name) for name in moved)
    assert all(not of_tower(loaded, name) for name in frozen.weights(frozen=False))


def looked_at(trainer: Trainer, samples: list[TrainingSample]) -> set[int]:
    """The numbers of the images among samples."""
    sight: Any = trainer.policy.sight
    with trainer.policy.sight.minibatch(samples):  # type: ignore[union-attr]
        return set(sight.seen)


@pytest.mark.slow
async def test_adapters_are_in_the_decoder_alone(loaded: LoadedModel) -> None:
    pytest.importorskip("peft", reason="pip install 'agentrl-framework[lora]'")
    samples = with_advantages(await played(loaded))
    trainer = trainer_of(loaded, lora={"rank": 2}, lr=1e-2)
    adapted = [name for name, _ in trainer.model.named_parameters() if ".lora_" in name]
    assert adapted
    assert not any(of_tower(loaded, name) for name in adapted)
    looked = counted(trainer)
    trainer.update(samples, 0)
    assert len(looked) == 1
    with pytest.raises(TrainError, match="has no linear layer"):
        trainer_of(loaded, lora={"rank": 2, "targets": ["fc1"]})


@pytest.mark.slow
async def test_with_top_layers_alone_the_tower_has_no_gradient(loaded: LoadedModel) -> None:
    trainer = trainer_of(loaded, trainable={"top_layers": 1}, lr=1e-2)
    found = gradients(trainer, with_advantages(await played(loaded)))
    assert found
    assert not any(of_tower(loaded, name) for name in found)


def test_there_must_be_a_tower_to_freeze() -> None:
    with pytest.raises(TrainError, match="a llama has no vision tower"):
        Trainer(llama(), TrainSettings(freeze_vision_tower=True))
    for own in ({"lora": {}}, {"trainable": {"top_layers": 1}}):
        with pytest.raises(ValueError, match="freeze the vision tower already"):
            TrainSettings(freeze_vision_tower=True, **own)


@pytest.mark.slow
@pytest.mark.parametrize("body", ["policy", "copy"])
async def test_a_critic_learns_with_images(loaded: LoadedModel, body: str) -> None:
    samples = await played(loaded)
    trainer = trainer_of(
        loaded, ("value",), critic={"body": body, "lr": 0.05, "body_lr": 1e-3, "steps": 30, "clip": None}
    )
    critic = trainer.auxiliary["value"]
    assert isinstance(critic, Critic)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    # The first two episodes show the same images, the third others: only by images can it tell them apart.
    good = [float(sample.episode_id == "e2") for sample in samples]
    targets = [
        np.where(sample.loss_mask, np.float32(value), np.float32(np.nan))
        for sample, value in zip(samples, good, strict=True)
    ]
    first = critic.fit_values(samples, targets)["value_loss"]
    assert critic.fit_values(samples, targets)["value_loss"] < first
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())


@pytest.mark.slow
async def test_a_reward_model_learns_with_images(loaded: LoadedModel) -> None:
    samples = [dataclasses.replace(s, reward=float(s.episode_id == "e2")) for s in await played(loaded)]
    trainer = trainer_of(loaded, ("prm_logprob",), reward_model={"lr": 1e-2, "steps": 1})
    model = trainer.auxiliary["reward_model"]
    assert isinstance(model, ImplicitRewardModel)
    tower = {n: p.clone() for n, p in model.policy.model.named_parameters() if of_tower(loaded, n)}
    reference = model.logprobs(samples)
    losses = [model.fit(samples, reference)["reward_model_loss"] for _ in range(20)]
    assert losses[-1] < losses[0]
    assert any(not torch.equal(p, tower[n]) for n, p in model.policy.model.named_parameters() if n in tower)


def test_several_ranks_are_refused() -> None:
    loaded = FAMILIES["llava"]()
    with pytest.raises(TrainError, match=r"a model that sees is trained by one rank only\n.*scale.trainer_ranks: 1"):
        driver_trainer(
            loaded.model,
            TrainSettings(),
            reference=None,
            base=Path(),
            ranks=Ranks(0, 2),
            eyes=vision_of(loaded, FILES.__getitem__, TrainSettings()),
        )
